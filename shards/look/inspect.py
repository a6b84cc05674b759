"""`topics inspect`: what is in a data directory, file by file. Judging it is `topics verify`'s."""

import json
from collections import Counter
from dataclasses import dataclass, field

from shards.look import bodies
from shards.look.datadir import CannotLook, DataDir
from shards.look.files import WAL, OpenFile, Shard, find_pages, segment_numbers, snapshot_files
from shards.look.text import Row, aligned, number_text, size_text, time_text
from shards.store import page as pages
from shards.store import segments, snapshot
from shards.store.page import PageHead, UnknownPageFormat
from shards.wal import batch as codec
from shards.wal.batch import UnknownFormat
from shards.wal.recovery import find_batches

# Pages are shown as they are found, so the widths of their columns are settled before.
_PAGE_LINE = "{:>18}  {:>9}  {:>7}  {:>8}  {:>7}  {:>7}  {:<24}  {}"
_PAGE_COLUMNS = ("offset", "bytes", "topic", "records", "live", "tagged", "first record", "seqs")


@dataclass(slots=True)
class _LogFile:
    name: str
    size: int
    content_bytes: int  # up to the end of the last batch that can be found
    batches: int = 0
    frames: int = 0
    first: int = 0
    last: int = 0
    durable: int = 0
    sessions: set[int] = field(default_factory=set)


def inspect(data: DataDir, *, as_json: bool) -> int:
    layout = data.layout
    if as_json:
        fields = (
            {"format": layout.format, "shards": layout.shards, "instance": layout.instance} if layout else {}
        )
        print(json.dumps({"kind": "data_dir", "path": str(data.path), "server": data.server, **fields}))
    else:
        about = (
            f"format {layout.format}, {number_text(layout.shards, 'shard')}, instance {layout.instance}"
            if layout
            else f"LAYOUT is {data.complaint}"
        )
        print(f"{data.path}: {about}")
        if data.server:
            print(f"A server (pid {data.server}) is running on it: the files may change under this look.")
    for name in data.shards:
        _Look(Shard.of(data.path, name), as_json=as_json).run()
    return 0


class _Look:
    """One shard, shown as it is read: nothing is kept longer than its file."""

    def __init__(self, shard: Shard, *, as_json: bool) -> None:
        self._shard = shard
        self._json = as_json
        self._known: dict[int, set[int]] = {}

    def run(self) -> None:
        if not self._json:
            print(f"\n{self._shard.name}")
        try:
            self._show_log()
            self._note_pages()
            self._show_segments()
            self._show_snapshots()
        except (UnknownFormat, UnknownPageFormat) as error:
            raise CannotLook(f"{self._shard.name}: {error}") from error
        except BrokenPipeError:
            raise  # that is about who reads this
        except OSError as error:
            raise CannotLook(f"{self._shard.name}: {error.filename}: {error.strerror}") from error

    def _say(self, kind: str, file: str, fields: dict[str, object]) -> None:
        print(json.dumps({"kind": kind, "shard": self._shard.name, "file": file, **fields}))

    # -- the log

    def _show_log(self) -> None:
        kinds: Counter[str] = Counter()
        rows: list[Row] = [
            ("log", "size", "content", "batches", "sessions", "frames", "first", "last", "durable")
        ]
        for name in self._shard.listed(WAL):
            if not name.endswith(".wal"):
                continue
            try:
                found, here = self._read_log(name)
            except FileNotFoundError:
                continue  # a checkpoint of the running server has just removed it
            kinds += here
            sessions = sorted(found.sessions)
            if self._json:
                fields: dict[str, object] = {
                    "bytes": found.size, "content_bytes": found.content_bytes, "batches": found.batches,
                    "sessions": sessions, "frames": dict(here), "first_batch": found.first,
                    "last_batch": found.last, "durable": found.durable,
                }  # fmt: skip
                self._say("log_file", f"{WAL}/{name}", fields)
            between = f"{sessions[0]}..{sessions[-1]}" if len(sessions) > 1 else "".join(map(str, sessions))
            numbers = (found.frames, found.first, found.last, found.durable)
            rows.append(
                (
                    name, size_text(found.size), size_text(found.content_bytes), str(found.batches),
                    between or "-", *map(str, numbers),
                )
            )  # fmt: skip
        self._print(rows)
        if kinds and not self._json:
            print("    frames: " + ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common()))

    def _read_log(self, name: str) -> tuple[_LogFile, Counter[str]]:
        with self._shard.opened(f"{WAL}/{name}") as file:
            data = file.read(0, file.size)
        found, kinds = _LogFile(name, len(data), 0), Counter[str]()
        for batch in find_batches(data):
            found.first = found.first or batch.number
            found.last, found.content_bytes = batch.number, batch.end
            found.durable = max(found.durable, batch.durable)
            found.batches += 1
            found.frames += batch.frames
            found.sessions.add(batch.session)
            kinds.update(bodies.kind_name(entry.kind) for entry in codec.entries(data, batch))
        return found, kinds

    # -- segments

    def _note_pages(self) -> None:
        """Where pages begin, by the snapshots, so that a damaged header does not hide those behind it."""
        for file in snapshot_files(self._shard):
            for entry in file.snapshot.entries if file.snapshot is not None else ():
                for page in entry[snapshot.PAGES]:
                    self._known.setdefault(page[0], set()).add(page[1])

    def _show_segments(self) -> None:
        if not self._json:
            print("  segments" + _PAGE_LINE.format(*_PAGE_COLUMNS)[10:])
        for number in segment_numbers(self._shard):
            try:
                with self._shard.opened(segments.path_of(number)) as file:
                    self._show_segment(number, file)
            except FileNotFoundError:
                continue

    def _show_segment(self, number: int, file: OpenFile) -> None:
        path = segments.path_of(number)
        count = 0
        if not self._json:
            print(f"    {path.rpartition('/')[2]}  {size_text(file.size)}")
        for page in find_pages(file, self._known.get(number, ())):
            if page.head is None:
                if self._json:
                    self._say("damaged_page", path, {"offset": page.offset, "reason": page.reason})
                else:
                    print(f"{page.offset:>18}  {page.reason}")
                continue
            count += 1
            live = page.head.count - file.read(page.offset + page.head.flags_at, page.head.count).count(
                pages.DELETED
            )
            if self._json:
                self._say("page", path, _page_fields(page.offset, page.head, live))
            else:
                print(_PAGE_LINE.format(*_page_row(page.offset, page.head, live)))
        if self._json:
            self._say("segment", path, {"bytes": file.size, "pages": count})

    # -- snapshots

    def _show_snapshots(self) -> None:
        rows: list[Row] = [
            ("snapshots", "size", "behind batch", "last batch", "time", "topics", "pages", "state")
        ]
        for file in snapshot_files(self._shard):
            found, name = file.snapshot, file.path.rpartition("/")[2]
            if found is None:
                if self._json:
                    fields: dict[str, object] = {"bytes": file.size, "valid": False, "reason": file.reason}
                    self._say("snapshot", file.path, fields)
                rows.append((name, size_text(file.size), "", "", "", "", "", f"not valid: {file.reason}"))
                continue
            head = found.head
            in_pages = sum(len(entry[snapshot.PAGES]) for entry in found.entries)
            if self._json:
                fields = {
                    "bytes": file.size, "valid": True, "number": found.number,
                    "start_batch": head.start_batch, "last_batch": head.last_batch,
                    "time": time_text(head.time_ms), "topics": len(found.entries), "pages": in_pages,
                }  # fmt: skip
                self._say("snapshot", file.path, fields)
            rows.append(
                (
                    name, size_text(file.size), str(head.start_batch), str(head.last_batch),
                    time_text(head.time_ms), str(len(found.entries)), str(in_pages), "valid",
                )
            )  # fmt: skip
        self._print(rows, left=(0, 7))

    def _print(self, rows: list[Row], left: tuple[int, ...] = (0,)) -> None:
        """A table whose first heading stands a little to the left of what is under it."""
        if not self._json:
            body = [rows[0], *(("  " + row[0], *row[1:]) for row in rows[1:])]
            for line in aligned(body if len(rows) > 1 else [rows[0][:1]], "  ", left):
                print(line)


def _page_fields(offset: int, head: PageHead, live: int) -> dict[str, object]:
    return {
        "offset": offset,
        "bytes": head.length,
        "topic": head.topic_id,
        "first_seq": head.first_seq,
        "last_seq": head.end_seq - 1,
        "records": head.count,
        "live": live,
        "tagged": head.tagged,
        "first_time": time_text(head.first_ts),
        "last_time": time_text(head.last_ts),
    }


def _page_row(offset: int, head: PageHead, live: int) -> Row:
    seqs = f"{head.first_seq}..{head.end_seq - 1}"
    numbers = (offset, head.length, head.topic_id, head.count, live, head.tagged)
    return (*map(str, numbers), time_text(head.first_ts), seqs)
