"""A disk in memory that knows what a crash would take.

Kept here and nowhere else:
  * Reads see everything written. `fdatasync` makes a file's data and size durable, never its name;
    `fsync_dir` makes the names in one directory durable, never the directory's own name or any data.
  * `crash_states` are the disks a power cut could leave at this moment. On each of them everything is
    durable, nothing is open, and `boot_id` has changed.
  * `process_crash` is the disk a killed process leaves: everything written is there, nothing is open,
    the machine is the same. What was not durable still is not, so a power cut later can take it.
  * A failed sync loses the dirty pages for good (`drop_pending`): a later sync that succeeds proves
    nothing about them.
Decided elsewhere: how writes tear and which subsets are tried (crash_variants.py).
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

from shards.disk import Fd
from tests.fakes.crash_variants import (
    EMPTY,
    Content,
    FileOp,
    Grow,
    Image,
    Limits,
    Truncate,
    Write,
    content_choices,
    file_variants,
    subsets,
)
from tests.fakes.name_tree import ROOT, Inode, Names, StateHash, contains, file_paths, reachable, set_name

DEFAULT_LIMITS = Limits()

# A change of names is a few edits that happen together: (directory, name, new inode or None).
NameEdit = tuple[Inode, str, Inode | None]


class DiskOp(NamedTuple):
    """What `on_op` is told: the operation's number, and which side of it we are on."""

    number: int
    kind: str
    path: str
    when: Literal["before", "after"]


@dataclass(slots=True)
class _File:
    durable: Image
    live: Image
    pending: list[FileOp] = field(default_factory=list)
    variants: tuple[Limits, list[tuple[Content, bytes]]] | None = None  # forgotten at each change

    @classmethod
    def of(cls, content: Content) -> "_File":
        return cls(Image(content), Image(content))

    def change(self, op: FileOp) -> None:
        self.live.apply(op)
        self.pending.append(op)
        self.variants = None

    def sync(self) -> None:
        for op in self.pending:
            self.durable.apply(op)
        self.drop_pending()

    def drop_pending(self) -> None:
        self.pending.clear()
        self.variants = None

    def copy(self) -> "_File":
        return _File(Image(self.durable.freeze()), Image(self.live.freeze()), self.pending.copy())

    def crash_variants(self, limits: Limits) -> list[tuple[Content, bytes]]:
        if self.variants is None or self.variants[0] is not limits:
            durable = self.durable.freeze()
            contents = file_variants(durable, self.pending, limits) if self.pending else [durable]
            self.variants = limits, [(content, content.digest()) for content in contents]
        return self.variants[1]


@dataclass(slots=True)
class _Open:
    file: _File
    path: str
    writable: bool


@dataclass(frozen=True, slots=True)
class CrashState:
    """One disk that a crash could leave, not yet built; equal hashes are equal disks."""

    hash: bytes
    boot_id: int
    names: Names
    contents: dict[Inode, Content]

    def build(self) -> "SimDisk":
        disk = SimDisk(boot_id=self.boot_id)
        disk._durable_names = {directory: dict(entries) for directory, entries in self.names.items()}
        disk._live_names = {directory: dict(entries) for directory, entries in self.names.items()}
        disk._files = {inode: _File.of(content) for inode, content in self.contents.items()}
        disk._next_inode = max([*self.names, *self.contents]) + 1
        return disk


class SimDisk:
    """A `Disk` whose every changing operation is numbered and can be watched through `on_op`."""

    def __init__(self, *, boot_id: int = 1) -> None:
        self.boot_id = boot_id
        self.op_count = 0
        self.on_op: Callable[[DiskOp], None] | None = None
        self._durable_names: Names = {ROOT: {}}
        self._live_names: Names = {ROOT: {}}
        self._pending_names: list[tuple[NameEdit, ...]] = []
        self._files: dict[Inode, _File] = {}
        self._open: dict[Fd, _Open] = {}
        self._next_inode = ROOT + 1
        self._next_fd = 3  # never reused, so that a closed fd stays an error

    # -- the Disk interface --

    def open(self, path: str, *, create: bool = False, write: bool = False) -> Fd:
        if not create:
            return self._add_fd(self._file_at(path), path, writable=write)
        with self._changing("create", path):
            directory, name = self._parent(path)
            if name in self._live_names[directory]:
                raise _error(errno.EEXIST, path)
            inode = self._new_inode()
            file = self._files[inode] = _File.of(EMPTY)
            self._edit_names((directory, name, inode))
        return self._add_fd(file, path, writable=True)

    def close(self, fd: Fd) -> None:
        self._opened(fd)
        del self._open[fd]

    def pread(self, fd: Fd, length: int, offset: int) -> bytes:
        if length < 0 or offset < 0:
            raise _error(errno.EINVAL, self._opened(fd).path)
        return self._opened(fd).file.live.read(length, offset)

    def pwrite(self, fd: Fd, data: bytes | memoryview, offset: int) -> int:
        opened = self._opened(fd, writing=True)
        if offset < 0:
            raise _error(errno.EINVAL, opened.path)
        with self._changing("pwrite", opened.path):
            taken = bytes(data)
            if taken:
                opened.file.change(Write(offset, taken))
        return len(taken)

    def pwritev(self, fd: Fd, parts: Sequence[bytes | memoryview], offset: int) -> int:
        return self.pwrite(fd, b"".join(parts), offset)

    def fdatasync(self, fd: Fd) -> None:
        opened = self._opened(fd)
        with self._changing("fdatasync", opened.path):
            opened.file.sync()

    def truncate(self, fd: Fd, length: int) -> None:
        opened = self._opened(fd, writing=True)
        if length < 0:
            raise _error(errno.EINVAL, opened.path)
        with self._changing("truncate", opened.path):
            opened.file.change(Truncate(length))

    def fallocate(self, fd: Fd, offset: int, length: int) -> None:
        opened = self._opened(fd, writing=True)
        if offset < 0 or length <= 0:
            raise _error(errno.EINVAL, opened.path)
        with self._changing("fallocate", opened.path):
            opened.file.change(Grow(offset + length))

    def size(self, fd: Fd) -> int:
        return self._opened(fd).file.live.size

    def rename(self, old: str, new: str) -> None:
        with self._changing("rename", f"{old} -> {new}"):
            old_directory, old_name = self._parent(old)
            new_directory, new_name = self._parent(new)
            inode = self._live_names[old_directory].get(old_name)
            if inode is None:
                raise _error(errno.ENOENT, old)
            replaced = self._live_names[new_directory].get(new_name)
            if replaced == inode:
                return
            if inode in self._live_names and contains(self._live_names, inode, new_directory):
                raise _error(errno.EINVAL, new)
            if replaced in self._live_names and contains(self._live_names, replaced, old_directory):
                raise _error(errno.ENOTEMPTY, new)
            if replaced is not None:
                self._check_replaceable(inode, replaced, new)
            self._edit_names((old_directory, old_name, None), (new_directory, new_name, inode))

    def unlink(self, path: str) -> None:
        with self._changing("unlink", path):
            self._file_at(path)
            directory, name = self._parent(path)
            self._edit_names((directory, name, None))

    def listdir(self, path: str) -> list[str]:
        return sorted(self._live_names[self._directory_at(path)])

    def mkdir(self, path: str) -> None:
        with self._changing("mkdir", path):
            directory = ROOT
            parts = _parts(path)
            for position, name in enumerate(parts, start=1):
                inode = self._live_names[directory].get(name)
                if inode is None:
                    inode = self._new_inode()
                    self._live_names[inode] = {}
                    self._durable_names[inode] = {}
                    self._edit_names((directory, name, inode))
                elif inode not in self._live_names:
                    raise _error(errno.EEXIST if position == len(parts) else errno.ENOTDIR, path)
                directory = inode

    def fsync_dir(self, path: str) -> None:
        with self._changing("fsync_dir", path):
            synced = self._directory_at(path)
            still_pending = []
            for edits in self._pending_names:
                for directory, name, inode in edits:
                    if directory == synced:
                        set_name(self._durable_names[synced], name, inode)
                # The other half of a rename between directories waits for its own directory.
                rest = tuple(edit for edit in edits if edit[0] != synced)
                if rest:
                    still_pending.append(rest)
            self._pending_names = still_pending

    # -- crashes --

    def process_crash(self) -> "SimDisk":
        """What a killed process leaves to the next one on the same machine."""
        disk = SimDisk(boot_id=self.boot_id)
        disk._durable_names = {inode: dict(entries) for inode, entries in self._durable_names.items()}
        disk._live_names = {inode: dict(entries) for inode, entries in self._live_names.items()}
        disk._pending_names = self._pending_names.copy()
        disk._files = {inode: file.copy() for inode, file in self._files.items()}
        disk._next_inode = self._next_inode
        return disk

    def crash_states(self, rng: Random | None = None, limits: Limits = DEFAULT_LIMITS) -> Iterator["SimDisk"]:
        """Every distinct disk that a power cut could leave now, within the limits."""
        for state in self.crash_plan(rng or Random(0), limits):
            yield state.build()

    def crash_plan(self, rng: Random, limits: Limits = DEFAULT_LIMITS) -> Iterator[CrashState]:
        """The same, hashed but not built, so that a caller can pass over those it has seen."""
        seen: set[bytes] = set()
        trees = self._crash_trees(rng, limits)
        extremes = reachable(self._durable_names), reachable(self._live_names)
        for names, paths in trees:
            variants = {inode: self._files[inode].crash_variants(limits) for _, inode in paths}
            changed = [inode for inode, found in variants.items() if len(found) > 1]
            counts = [len(variants[inode]) for inode in changed]
            thin = len(trees) * limits.contents_tried(counts) > limits.states_max and names not in extremes
            names_hash = StateHash(names)
            for choice in content_choices(counts, limits, rng, thin=thin):
                chosen = {inode: found[0] for inode, found in variants.items()}
                chosen |= {inode: variants[inode][pick] for inode, pick in zip(changed, choice, strict=True)}
                digest = names_hash.with_files((path, chosen[inode][1]) for path, inode in paths)
                if digest not in seen:
                    seen.add(digest)
                    contents = {inode: content for inode, (content, _) in chosen.items()}
                    yield CrashState(digest, self.boot_id + 1, names, contents)

    def state_hash(self) -> bytes:
        """Equal for disks on which every read answers the same."""
        names = reachable(self._live_names)
        files = ((path, self._files[inode].live.freeze().digest()) for path, inode in file_paths(names))
        return StateHash(names).with_files(files)

    def drop_pending(self, fd: Fd) -> None:
        """What the kernel does when writing back fails: the pages stay readable and are never written."""
        self._opened(fd).file.drop_pending()

    def tree(self) -> dict[str, int]:
        """Path and size of every file a reader can see."""
        return {path: self._files[inode].live.size for path, inode in file_paths(self._live_names)}

    @property
    def open_count(self) -> int:
        return len(self._open)

    # -- inside --

    @contextmanager
    def _changing(self, kind: str, path: str) -> Iterator[None]:
        """Numbers the operation and tells the watcher; an operation that raises did not happen."""
        number = self.op_count + 1
        if self.on_op is not None:
            self.on_op(DiskOp(number, kind, path, "before"))
        yield
        self.op_count = number
        if self.on_op is not None:
            self.on_op(DiskOp(number, kind, path, "after"))

    def _crash_trees(self, rng: Random, limits: Limits) -> list[tuple[Names, list[tuple[str, Inode]]]]:
        """Every distinct set of reachable names, each with its files."""
        found: list[tuple[Names, list[tuple[str, Inode]]]] = []
        for arrived in subsets(len(self._pending_names), limits, rng):
            names = {inode: dict(entries) for inode, entries in self._durable_names.items()}
            for edits, here in zip(self._pending_names, arrived, strict=True):
                for directory, name, inode in edits if here else ():
                    set_name(names[directory], name, inode)
            names = reachable(names)
            if all(names != earlier for earlier, _ in found):
                found.append((names, file_paths(names)))
        return found

    def _new_inode(self) -> Inode:
        self._next_inode += 1
        return self._next_inode - 1

    def _add_fd(self, file: _File, path: str, *, writable: bool) -> Fd:
        fd = self._next_fd
        self._next_fd += 1
        self._open[fd] = _Open(file, path, writable)
        return fd

    def _opened(self, fd: Fd, *, writing: bool = False) -> _Open:
        opened = self._open.get(fd)
        if opened is None or (writing and not opened.writable):
            raise _error(errno.EBADF, f"fd {fd}")
        return opened

    def _edit_names(self, *edits: NameEdit) -> None:
        for directory, name, inode in edits:
            set_name(self._live_names[directory], name, inode)
        self._pending_names.append(edits)

    def _directory_at(self, path: str) -> Inode:
        directory = ROOT
        for name in _parts(path):
            inode = self._live_names[directory].get(name)
            if inode is None:
                raise _error(errno.ENOENT, path)
            if inode not in self._live_names:
                raise _error(errno.ENOTDIR, path)
            directory = inode
        return directory

    def _parent(self, path: str) -> tuple[Inode, str]:
        *above, name = _parts(path)
        return self._directory_at("/".join(above)), name

    def _file_at(self, path: str) -> _File:
        directory, name = self._parent(path)
        inode = self._live_names[directory].get(name)
        if inode is None:
            raise _error(errno.ENOENT, path)
        if inode in self._live_names:
            raise _error(errno.EISDIR, path)
        return self._files[inode]

    def _check_replaceable(self, inode: Inode, replaced: Inode, path: str) -> None:
        moving_directory, onto_directory = inode in self._live_names, replaced in self._live_names
        if moving_directory and not onto_directory:
            raise _error(errno.ENOTDIR, path)
        if onto_directory and not moving_directory:
            raise _error(errno.EISDIR, path)
        if onto_directory and self._live_names[replaced]:
            raise _error(errno.ENOTEMPTY, path)


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
