"""`topics inspect --wal FILE`: the batches of one log file, or the one that stands at an offset."""

import json
from collections.abc import Iterator
from pathlib import Path

from shards.look import bodies
from shards.look.check_log import batch_defects
from shards.look.datadir import CannotLook
from shards.look.text import Row, aligned, number_text, shown, time_text
from shards.wal import batch as codec
from shards.wal.batch import Batch, FrameEntry, UnknownFormat
from shards.wal.frame import FrameError
from shards.wal.recovery import find_batches

# A batch has up to a few thousand frames; on a terminal nobody wants to see them all.
_FRAMES_SHOWN_MAX = 40
_ROWS = 1000


def read_log_file(data_dir: Path, given: str) -> tuple[Path, bytes]:
    """The file that `--wal` means: a path inside of the data directory, or any other."""
    candidates = (data_dir / given, Path(given))
    path = next((one for one in candidates if one.is_file()), None)
    if path is None:
        raise CannotLook(f"--wal {given}: there is no such file, neither in {data_dir} nor here")
    try:
        return path, path.read_bytes()
    except OSError as error:
        raise CannotLook(f"--wal {given}: {error.strerror}") from error


def show_batches(path: Path, data: bytes, *, as_json: bool) -> int:
    """One line per batch."""
    rows: list[Row] = [("offset", "bytes", "batch", "session", "frames", "durable", "time", "state")]
    for batch in _batches(data):
        fields = _header(data, batch)
        if as_json:
            print(json.dumps({"kind": "batch", "file": str(path), **fields}))
            continue
        rows.append(
            (
                str(batch.start), str(batch.end - batch.start), str(batch.number), str(batch.session),
                str(batch.frames), str(batch.durable), time_text(batch.time_ms), _state(data, batch),
            )
        )  # fmt: skip
        if len(rows) == _ROWS:
            _print_rows(rows)
            rows = rows[:1]
    if not as_json:
        _print_rows(rows)
    return 0


def _print_rows(rows: list[Row]) -> None:
    for line in aligned(rows, "", left=(6, 7)):
        print(line)


def show_at(path: Path, data: bytes, offset: int, *, as_json: bool) -> int:
    """The batch that the byte at `offset` belongs to, and the frame, if it stands in one."""
    if not 0 <= offset < len(data):
        raise CannotLook(f"--offset {offset} is outside of {path}, which has {len(data)} bytes")
    end = 0
    for batch in _batches(data):
        if offset < batch.start:
            break
        if offset < batch.end:
            _show(path, data, batch, offset, as_json=as_json)
            return 0
        end = batch.end
    empty = not data[end:].strip(b"\0")
    what = "preallocated zeros" if empty else "bytes that belong to no batch"
    if as_json:
        print(
            json.dumps({"kind": "nothing", "file": str(path), "offset": offset, "behind": end, "what": what})
        )
    else:
        print(f"{path} at {offset}: no batch; {what}, behind the batch that ends at {end}")
    return 1


def _batches(data: bytes) -> Iterator[Batch]:
    try:
        yield from find_batches(data)
    except UnknownFormat as error:
        raise CannotLook(str(error)) from error


def _state(data: bytes, batch: Batch) -> str:
    defects = list(batch_defects(data, batch, codec.entries(data, batch)))
    return defects[0][1] if defects else "intact"


def _header(data: bytes, batch: Batch) -> dict[str, object]:
    return {
        "offset": batch.start,
        "bytes": batch.end - batch.start,
        "batch": batch.number,
        "session": batch.session,
        "session_first": batch.session_first,
        "durable": batch.durable,
        "predecessor": f"{batch.predecessor:016x}",
        "identity": f"{batch.identity:016x}",
        "time": time_text(batch.time_ms),
        "frames": batch.frames,
        "state": _state(data, batch),
    }


def _frame(data: memoryview, entry: FrameEntry) -> dict[str, object]:
    body = codec.body_of(data, entry)
    found: dict[str, object] = {
        "offset": entry.start,
        "bytes": entry.length,
        "frame": bodies.kind_name(entry.kind),
        "topic": entry.topic_id,
        "first_seq": entry.first_seq,
        "count": entry.count,
        "flags": entry.flags,
        "intact": entry.intact,
    }
    try:
        found["body"] = bodies.summary(entry, body) if entry.intact else {"raw": shown(bytes(body))}
    except FrameError as error:
        found["body"] = {"impossible": str(error), "raw": shown(bytes(body))}
    return found


def _show(path: Path, data: bytes, batch: Batch, offset: int, *, as_json: bool) -> None:
    entries = codec.entries(data, batch)
    at = next(
        (at for at, one in enumerate(entries) if one.start <= offset < one.start + one.length), None
    )  # fmt: skip
    view = memoryview(data)
    if as_json:
        frames = [_frame(view, entry) for entry in entries]
        header = {"kind": "batch", "file": str(path), **_header(data, batch)}
        print(json.dumps(header | {"directory": frames, "frame_at_offset": at}))
        return
    print(f"{path} at {offset}: batch {batch.number}")
    for name, value in _header(data, batch).items():
        print(f"  {name:14}{value}")
    print()
    rows = [("", "frame", "offset", "bytes", "topic", "first seq", "count", "flags", "intact")]
    shown_entries = list(enumerate(entries))
    if at is None:
        shown_entries = shown_entries[:_FRAMES_SHOWN_MAX]
    else:
        shown_entries = shown_entries[max(0, at - _FRAMES_SHOWN_MAX // 2) : at + _FRAMES_SHOWN_MAX // 2]
    for index, entry in shown_entries:
        rows.append(
            (
                ">" if index == at else "", bodies.kind_name(entry.kind), str(entry.start), str(entry.length),
                str(entry.topic_id), str(entry.first_seq), str(entry.count), str(entry.flags),
                "yes" if entry.intact else "NO",
            )
        )  # fmt: skip
    for line in aligned(rows, "", left=(0, 1, 8)):
        print(line)
    if len(shown_entries) < len(entries):
        print(f"  … {number_text(len(entries) - len(shown_entries), 'frame')} more")
    for index, entry in shown_entries:
        if at is None or index == at:
            _print_body(view, entry)


def _print_body(data: memoryview, entry: FrameEntry) -> None:
    found = _frame(data, entry)["body"]
    if isinstance(found, dict) and found:
        print(f"\n{bodies.described(entry)}, at {entry.start}")
        for name, value in found.items():
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            print(f"  {name:14}{text}" if len(name) < 14 else f"  {name}  {text}")
