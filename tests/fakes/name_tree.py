"""Names in directories as plain dictionaries: what can be reached from the root, and its hash.

Kept here and nowhere else:
  * An inode that is a key of `Names` is a directory, any other is a file.
  * What cannot be reached from the root does not exist after a crash.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b

ROOT = 0

Inode = int
Names = dict[Inode, dict[str, Inode]]


def set_name(entries: dict[str, Inode], name: str, inode: Inode | None) -> None:
    if inode is None:
        entries.pop(name, None)
    else:
        entries[name] = inode


def contains(names: Names, ancestor: Inode, directory: Inode) -> bool:
    return ancestor == directory or any(
        contains(names, inode, directory) for inode in names[ancestor].values() if inode in names
    )


def reachable(names: Names) -> Names:
    found: Names = {}
    waiting = [ROOT]
    while waiting:
        directory = waiting.pop()
        if directory not in found:
            found[directory] = names[directory]
            waiting.extend(inode for inode in names[directory].values() if inode in names)
    return found


def paths(names: Names, directory: Inode = ROOT, above: str = "") -> Iterator[tuple[str, Inode]]:
    for name, inode in sorted(names[directory].items()):
        yield above + name, inode
        if inode in names:
            yield from paths(names, inode, f"{above}{name}/")


def file_paths(names: Names) -> list[tuple[str, Inode]]:
    return [(path, inode) for path, inode in paths(names) if inode not in names]


class StateHash:
    """A hash of the directories, to be completed with the contents of the files."""

    def __init__(self, names: Names) -> None:
        self._directories = blake2b(digest_size=16)
        for path, inode in paths(names):
            if inode in names:
                self._directories.update(f"{path}/\0".encode())

    def with_files(self, files: Iterable[tuple[str, bytes]]) -> bytes:
        state = self._directories.copy()
        for path, digest in files:
            state.update(path.encode() + b"\0" + digest)
        return state.digest()
