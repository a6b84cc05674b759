"""What the body of a log frame says, as a few named values."""

from collections.abc import Callable

from shards.look.text import shown, time_text
from shards.wal import frame as frames
from shards.wal.batch import FrameEntry
from shards.wal.frame import FrameError, Kind

_RANGES_MAX = 8
Body = bytes | memoryview


def kind_name(kind: int) -> str:
    return Kind(kind).name if kind in list(Kind) else f"kind {kind}"


def described(entry: FrameEntry) -> str:
    """The frame in a few words: `APPEND of topic 3, seqs 7..9`."""
    text = kind_name(entry.kind)
    if entry.topic_id:
        text += f" of topic {entry.topic_id}"
    if entry.kind == Kind.APPEND:
        text += f", seqs {entry.first_seq}..{entry.first_seq + entry.count - 1}"
    return text


def summary(entry: FrameEntry, body: Body) -> dict[str, object]:
    """Raises FrameError for an intact body that says something impossible."""
    summarise = _SUMMARIES.get(entry.kind)
    if summarise is None:
        raise FrameError(f"kind {entry.kind} is not known to this release")
    return summarise(entry, body)


def _append(entry: FrameEntry, body: Body) -> dict[str, object]:
    append = frames.decode_append(entry.first_seq, entry.count, entry.flags, body)
    run = append.run
    found: dict[str, object] = {"time": time_text(run.ts), "records": run.count}
    if append.key:
        found["idempotency_key_digest"] = append.key.hex()
    if append.cap_evicted:
        found["cap_evicted"] = append.cap_evicted
    if run.node_ids is not None:
        found["nodes"] = [shown(section) for section in run.nodes[1 : _RANGES_MAX + 1]]
    if run.tag_lengths is not None:
        found["tagged"] = len(run.tag_lengths) - run.tag_lengths.count(0)
        found["tags"] = shown(run.tags)
    found["payload"] = shown(run.blob)
    return found


def _open(entry: FrameEntry, body: Body) -> dict[str, object]:
    return {"boot_id": shown(frames.decode_open(body))}


def _create(entry: FrameEntry, body: Body) -> dict[str, object]:
    name, config = frames.decode_create(body)
    return {"name": shown(name), "durability": config.durability}


def _config(entry: FrameEntry, body: Body) -> dict[str, object]:
    return {"head": entry.first_seq, "durability": frames.decode_config(body).durability}


def _delete(entry: FrameEntry, body: Body) -> dict[str, object]:
    ranges = frames.decode_delete(body)
    return {
        "records": sum(last - first + 1 for first, last in ranges),
        "ranges": [f"{first}..{last}" for first, last in ranges[:_RANGES_MAX]],
    }


def _floor(entry: FrameEntry, body: Body) -> dict[str, object]:
    cap_evicted, ttl_expired = frames.decode_floor(body)
    return {"cap_evicted": cap_evicted, "ttl_expired": ttl_expired}


def _ceiling(entry: FrameEntry, body: Body) -> dict[str, object]:
    return {"ceiling": entry.first_seq}


def _hole(entry: FrameEntry, body: Body) -> dict[str, object]:
    hole = frames.decode_hole(entry.first_seq, body)
    return {"lost": f"{hole.first}..{hole.last}", "reason": shown(hole.reason), "cause": shown(hole.cause)}


def _nothing(entry: FrameEntry, body: Body) -> dict[str, object]:
    return {}


_SUMMARIES: dict[int, Callable[[FrameEntry, Body], dict[str, object]]] = {
    Kind.OPEN: _open,
    Kind.CLOSE: _nothing,
    Kind.CREATE: _create,
    Kind.CONFIG: _config,
    Kind.DROP: _nothing,
    Kind.APPEND: _append,
    Kind.DELETE: _delete,
    Kind.FLOOR: _floor,
    Kind.CEILING: _ceiling,
    Kind.HOLE: _hole,
}
