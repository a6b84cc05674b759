"""What a shard has promised so far, and the judge of what a crash has left of it.

A record passes through three states: *handed out* (it has a seq in memory), *visible* (its group was
written, so readers may have seen it), *promised* (its class keeps it through this kind of crash).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from shards.state import TopicState
from tests.simulation.explore import Crash
from tests.simulation.log_view import RECOVERED_AFTER_MS, WALL_MS, Recovered, TopicView, view_of


@dataclass(slots=True)
class Promise:
    """What must be so after one kind of crash."""

    records: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)  # deleted or lost for good: must not come back
    earliest: int = 1
    floor: int = 1
    config_at: int = -1  # index into `configs` of what was acked last; -1: the topic need not exist
    dropped: bool = False


@dataclass(slots=True)
class Life:
    """One topic from its creation to its end."""

    topic_id: int
    name: str
    configs: list[str]
    handed: dict[int, str] = field(default_factory=dict)
    classes: dict[int, str] = field(default_factory=dict)
    visible_head: int = 0
    gaps_seen: set[tuple[int, int, str, str]] = field(default_factory=set)
    deletes: set[int] = field(default_factory=set)  # covered by a delete that was issued
    drop_issued: bool = False
    ever_ephemeral: bool = False
    promises: dict[Crash, Promise] = field(default_factory=lambda: {crash: Promise() for crash in Crash})

    def may_be_evicted(self, seq: int) -> bool:
        """Whether a cap or the time may have taken `seq` under any config that the topic has had."""
        later = [text for at, text in self.handed.items() if at >= seq]
        for config in map(json.loads, self.configs):
            if config["cap_records"] and len(later) > config["cap_records"]:
                return True
            if config["cap_bytes"] and sum(map(_payload_bytes, later)) > config["cap_bytes"]:
                return True
            ts = json.loads(self.handed[seq])["$ts"]
            if config["ttl_ms"] and ts + config["ttl_ms"] <= WALL_MS + RECOVERED_AFTER_MS:
                return True
        return False


def _payload_bytes(text: str) -> int:
    return len(json.dumps(json.loads(text)["data"]))


class Ledger:
    def __init__(self) -> None:
        self.lives: dict[int, Life] = {}

    # -- what happens

    def note_memory(self, topics: Iterable[TopicState]) -> dict[int, TopicView]:
        """Commands have run: what they handed out may reach the disk from now on."""
        views = {topic.log.topic_id: view_of(topic) for topic in topics}
        for topic_id, view in views.items():
            life = self.lives.get(topic_id)
            if life is None:
                life = self.lives[topic_id] = Life(topic_id, view.name, [view.config])
            if life.configs[-1] != view.config:
                life.configs.append(view.config)
            durability = json.loads(view.config)["durability"]
            life.ever_ephemeral |= durability == "ephemeral"
            for seq, text in view.records.items():
                known = life.handed.setdefault(seq, text)
                assert known == text, f"seq {seq} of {life.name} was {known} and is {text}"
                life.classes.setdefault(seq, durability)
        return views

    def note_visible(self, views: dict[int, TopicView]) -> None:
        """A group was written: readers may have seen this."""
        for topic_id, view in views.items():
            life = self.lives[topic_id]
            life.visible_head = max(life.visible_head, view.head)
            life.gaps_seen.update(view.gaps)
            promise = life.promises[Crash.PROCESS]
            self._raise_floors(promise, view)
            promise.config_at = max(promise.config_at, life.configs.index(view.config))
        for life in self.lives.values():
            if life.topic_id not in views:
                life.drop_issued = life.promises[Crash.PROCESS].dropped = True

    def _raise_floors(self, promise: Promise, view: TopicView) -> None:
        promise.earliest = max(promise.earliest, view.earliest)
        promise.floor = max(promise.floor, view.floor)

    def ack_write(self, topic_id: int, seqs: range, view: TopicView | None) -> None:
        life = self.lives[topic_id]
        for seq in seqs:
            durability = life.classes.get(seq)
            if durability in ("fsync", "disk", "memory"):
                life.promises[Crash.PROCESS].records.add(seq)
            if durability == "fsync":
                life.promises[Crash.MACHINE].records.add(seq)
        promise = life.promises[Crash.MACHINE]
        promise.config_at = max(promise.config_at, 0)
        if view is not None and all(life.classes.get(seq) == "fsync" for seq in seqs):
            self._raise_floors(promise, view)

    def ack_config(self, topic_id: int, config: str, view: TopicView | None) -> None:
        life = self.lives[topic_id]
        at = len(life.configs) - 1 - life.configs[::-1].index(config)
        for promise in life.promises.values():
            promise.config_at = max(promise.config_at, at)
            if view is not None:
                self._raise_floors(promise, view)

    def ack_delete(self, topic_id: int, seqs: set[int], *, synced: bool) -> None:
        life = self.lives[topic_id]
        life.promises[Crash.PROCESS].gone |= seqs
        if synced:
            life.promises[Crash.MACHINE].gone |= seqs

    def ack_drop(self, topic_id: int) -> None:
        for promise in self.lives[topic_id].promises.values():
            promise.dropped = True

    def note_recovered(self, views: dict[int, TopicView]) -> None:
        """A new session serves this and has called it durable: no crash may take it any more."""
        for topic_id in self.lives.keys() - views.keys():
            # A topic whose creation got no further than memory leaves nothing behind, not even its id.
            if self.lives[topic_id].promises[Crash.MACHINE].config_at < 0:
                del self.lives[topic_id]
        for life in self.lives.values():
            view = views.get(life.topic_id)
            life.drop_issued = view is None
            if view is not None:
                # What never reached the log was never seen, and its seq may be given away.
                life.handed = {seq: text for seq, text in life.handed.items() if seq <= view.head}
                life.classes = {seq: life.classes[seq] for seq in life.handed}
            for promise in life.promises.values():
                promise.dropped = view is None
                if view is not None:
                    promise.records = set(view.records)
                    promise.gone = life.handed.keys() - view.records.keys()
                    promise.earliest, promise.floor = view.earliest, view.floor
                    promise.config_at = len(life.configs) - 1 - life.configs[::-1].index(view.config)
            if view is not None:
                life.deletes -= view.records.keys()
                life.visible_head = max(life.visible_head, view.head)
                life.gaps_seen.update(view.gaps)

    # -- the judge

    def judge(self, recovered: Recovered, crash: Crash) -> None:
        """Raises AssertionError with everything that is wrong."""
        wrong = [f"problem: {problem}" for problem in recovered.problems]
        wrong += recovered.complaints
        wrong += [f"topic {at} was never created" for at in recovered.topics.keys() - self.lives.keys()]
        for topic_id, life in self.lives.items():
            view = recovered.topics.get(topic_id)
            if view is None:
                promised = life.visible_head or life.promises[crash].config_at >= 0
                if promised and not life.drop_issued:
                    wrong.append(f"acked topic {life.name} ({topic_id}) is lost")
                continue
            wrong += [f"{life.name}: {what}" for what in _judge_topic(life, view, crash)]
            new = recovered.first_new_seqs.get(topic_id)
            if new is not None and new <= life.visible_head:
                wrong.append(f"{life.name}: seq {new} was seen and is handed out again")
        assert not wrong, "; ".join(wrong)


def _judge_topic(life: Life, view: TopicView, crash: Crash) -> Iterable[str]:
    promise = life.promises[crash]
    if promise.dropped:
        yield "an acked drop is undone"
    if view.head < life.visible_head:
        yield f"head {life.visible_head} moved back to {view.head}"
    for seq, text in view.records.items():
        if life.handed.get(seq) != text:
            yield f"seq {seq} is {text}, handed out was {life.handed.get(seq)}"
    missing = {seq for seq in range(1, life.visible_head + 1) if seq not in view.records}
    lost = {seq for seq in promise.records & missing - life.deletes if not life.may_be_evicted(seq)}
    if lost:
        yield f"acked seqs {sorted(lost)} are lost"
    unexplained = {seq for seq in missing - life.deletes if not view.in_gap(seq)}
    if unexplained:
        yield f"seqs {sorted(unexplained)} are missing without a tombstone or a delete"
    if view.silent - life.deletes:
        yield f"some reader passes seqs {sorted(view.silent - life.deletes)} without a word"
    if promise.gone & view.records.keys():
        yield f"seqs {sorted(promise.gone & view.records.keys())} were gone and are back"
    if view.earliest < promise.earliest:
        yield f"earliest {promise.earliest} moved back to {view.earliest}"
    if view.floor < promise.floor and not life.ever_ephemeral:
        yield f"floor {promise.floor} moved back to {view.floor}"
    if view.config not in life.configs[max(0, promise.config_at) :]:
        yield f"acked config {life.configs[promise.config_at]} became {view.config}"
    if crash is Crash.PROCESS and not life.ever_ephemeral:
        made_up = {gap for gap in view.gaps if gap[3] == "crash"} - life.gaps_seen
        if made_up:
            yield f"a killed process lost {made_up}"
        if view.head > max(life.handed, default=life.visible_head) and view.head > life.visible_head:
            yield f"a killed process moved the head to {view.head}"
