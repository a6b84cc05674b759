"""Are snapshots and segments whole, and do they fit each other?

A snapshot says which pages count. What none names is left over from a checkpoint that did not finish: a
note. The flags of a page may know more deletes than its snapshot (they are written at any time), never fewer.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from shards.look.files import OpenFile, Shard, find_pages, segment_numbers, snapshot_files
from shards.look.report import Progress, Report
from shards.look.text import number_text, shown
from shards.state import Registry, TopicState
from shards.store import page as pages
from shards.store import segments, snapshot
from shards.store.page import PageDamaged, PageHead, UnknownPageFormat
from shards.store.segments import SegmentStore
from shards.store.snapshot import Snapshot, SnapshotDamaged
from topics.engine.chunk import Chunk
from topics.engine.sealed import Sealed


@dataclass(slots=True)
class Named:
    """A page that a snapshot names; `tally` only for the newest one."""

    snapshot: int
    page: Sealed
    tally: "Tally | None"


@dataclass(slots=True)
class Tally:
    """What the newest snapshot says of a topic's records, and what its pages add up to."""

    path: str
    topic_id: int
    name: str
    earliest: int
    count: int
    size: int
    live: int = 0
    live_bytes: int = 0
    unreadable: bool = False


@dataclass(slots=True)
class StoreCheck:
    """The snapshots of a shard first, then its segments against them."""

    shard: Shard
    report: Report
    snapshots: list[Snapshot] = field(default_factory=list)  # those that can be trusted, oldest first
    running: bool = False
    refused: int = 0
    pages: int = 0
    segments: list[int] = field(default_factory=list)
    _named: dict[int, dict[int, list[Named]]] = field(default_factory=lambda: defaultdict(dict))
    _tallies: list[Tally] = field(default_factory=list)

    @property
    def _left_by(self) -> str:
        if self.running:
            return "from a checkpoint that is under way, or did not finish"
        return "left over from a checkpoint that did not finish"

    # -- snapshots

    def read_snapshots(self, progress: Progress) -> None:
        for file in snapshot_files(self.shard):
            progress.add(file.size)
            if file.unknown:
                self.refused += 1
                self.report.unknown(file.path, file.reason)
            elif file.snapshot is None:
                self.refused += 1
                self.report.problem(file.path, 0, f"not a snapshot that can be trusted: {file.reason}")
            else:
                self.snapshots.append(file.snapshot)
        for name in self.shard.listed(snapshot.DIRECTORY):
            if name.endswith(".tmp"):
                self.report.note(f"{snapshot.DIRECTORY}/{name}", None, f"unfinished: {self._left_by}")
            elif not name.endswith(".snap"):
                self.report.note(f"{snapshot.DIRECTORY}/{name}", None, "not a file of ours")
        for one in list(self.snapshots):
            self._check_snapshot(one, newest=one is self.snapshots[-1])

    def _check_snapshot(self, one: Snapshot, *, newest: bool) -> None:
        path, head = f"{snapshot.DIRECTORY}/{one.number:08d}.snap", one.head
        if head.start_batch > head.last_batch:
            text = f"it begins behind batch {head.start_batch} and ends with batch {head.last_batch}"
            self.report.problem(path, None, text)
        seen: set[int] = set()
        store = SegmentStore(self.shard.disk, cache_bytes=0)
        for entry in one.entries:
            try:
                topic = restore(store, entry)
            except SnapshotDamaged as error:
                self.report.problem(path, None, str(error))
                continue
            topic_id = topic.log.topic_id
            if topic_id in seen or topic_id >= head.next_topic_id:
                self.report.problem(
                    path, None, f"topic id {topic_id} cannot be: it is used twice or too high"
                )
            seen.add(topic_id)
            if not head.start_batch <= topic.as_of <= head.last_batch:
                text = f"topic {topic_id} is noted at batch {topic.as_of}, outside of the snapshot's range"
                self.report.problem(path, None, text)
            self._name_pages(one, path, topic, newest=newest)

    def _name_pages(self, one: Snapshot, path: str, topic: TopicState, *, newest: bool) -> None:
        log = topic.log
        tally = None
        if newest:
            tally = Tally(path, log.topic_id, log.name, log.earliest, log.count, log.bytes)
            self._tallies.append(tally)
        end = 1
        for page in sorted(_sealed(topic), key=lambda page: page.first_seq):
            if page.first_seq < end:
                text = f"topic {log.topic_id}: two pages overlap, at seq {page.first_seq}"
                self.report.problem(path, None, text)
            end = max(end, page.end_seq)
            self._named[page.file].setdefault(page.offset, []).append(Named(one.number, page, tally))
        if end > log.head + 1:
            self.report.problem(
                path, None, f"topic {log.topic_id}: pages up to seq {end - 1}, head {log.head}"
            )

    # -- segments

    def check_segments(self, progress: Progress) -> None:
        self.segments = segment_numbers(self.shard)
        for name in self.shard.listed(segments.DIRECTORY):
            if not (name.endswith(".seg") and name[:-4].isdecimal()):
                self.report.note(f"{segments.DIRECTORY}/{name}", None, "not a file of ours")
        gone: set[int] = set()  # a checkpoint has just removed them
        needed = set(self._named).union(*(one.head.damaged_files for one in self.snapshots))
        for number in self.segments:
            path = segments.path_of(number)
            try:
                with self.shard.opened(path) as file:
                    if number in needed or self.refused:
                        self._check_file(number, path, file)
                    else:
                        self.report.note(path, None, f"no snapshot names it: {self._left_by}")
                    progress.add(file.size)
            except FileNotFoundError:
                gone.add(number)
        for number in sorted((set(self._named) - set(self.segments)) | (gone & set(self._named))):
            named = [one for some in self._named[number].values() for one in some]
            self._give_up(named)
            by = sorted({one.snapshot for one in named})
            count = number_text(len(self._named[number]), "page")
            text = f"missing: {count} in it, named by snapshot {', '.join(map(str, by))}"
            self.report.problem(segments.path_of(number), None, text, by)
        self._check_tallies()

    def _check_file(self, number: int, path: str, file: OpenFile) -> None:
        if file.read(0, segments.HEADER_BYTES) != segments.file_header(number):
            self.report.problem(path, 0, f"not the header of segment file {number}")
        named = self._named.get(number, {})
        found: set[int] = set()
        try:
            for page in find_pages(file, named):
                found.add(page.offset)
                if page.head is None:
                    self.report.problem(path, page.offset, page.reason)
                    self._give_up(named.get(page.offset, ()))
                else:
                    self.pages += 1
                    self._check_page(path, page.offset, page.head, file, named.get(page.offset, ()))
        except UnknownPageFormat as error:
            self.report.unknown(path, str(error))
        for offset in sorted(named.keys() - found):
            self._give_up(named[offset])
            by = named[offset][0]
            text = (
                f"snapshot {by.snapshot} names a page of topic {by.page.topic_id} here, and none begins here"
            )
            self.report.problem(path, offset, text)

    def _check_page(self, path: str, at: int, head: PageHead, file: OpenFile, named: Sequence[Named]) -> None:
        data = memoryview(file.read(at, head.length))
        who = f"page of topic {head.topic_id}, seqs {head.first_seq}..{head.end_seq - 1}"
        # What was damaged when a snapshot was made, and taken out of use then, is no news.
        known = not named and any(_number_of(path) in one.head.damaged_files for one in self.snapshots)
        say = self.report.note if known else self.report.problem
        defects = pages.defects(head, data) if len(data) == head.length else [(0, "it is cut off")]
        for offset, text in defects:
            say(path, at + offset, f"{who}: {text}{', out of use already' if known else ''}")
        strays = bytes(data[head.flags_at :]).translate(None, bytes((0, pages.DELETED)))
        if strays:
            text = f"{number_text(len(strays), 'flag')} neither live nor deleted: live, then"
            self.report.note(path, at + head.flags_at, f"{who}: {text}")
        try:
            page = pages.decode(data)
        except PageDamaged as damaged:
            if not defects:
                say(path, at, f"{who}: {damaged.reason}")
            self._give_up(named)
            return
        if page.damaged:
            self._give_up(named)  # what was in them cannot be counted any more
        for one in named:
            self._compare(path, at, head, page.chunk, one)

    def _compare(self, path: str, at: int, head: PageHead, chunk: Chunk, named: Named) -> None:
        page = named.page
        wanted = (page.topic_id, page.first_seq, page.count, page.length, page.first_ts, page.last_ts)
        there = (head.topic_id, head.first_seq, head.count, head.length, head.first_ts, head.last_ts)
        if wanted != there or page.tags_between != _tags_between(chunk):
            text = (
                f"snapshot {named.snapshot} names topic {page.topic_id}, seqs {page.first_seq}.."
                f"{page.end_seq - 1}, {page.length} bytes; here are topic {head.topic_id}, seqs "
                f"{head.first_seq}..{head.end_seq - 1}, {head.length} bytes"
            )
            self.report.problem(path, at, text)
            self._give_up([named])
            return
        tally = named.tally
        if tally is None:
            return
        page.apply_pending(chunk)
        if chunk.live_count(0, chunk.count) > page.live:
            text = (
                f"{chunk.live_count(0, chunk.count)} records are live by their flags, "
                f"snapshot {named.snapshot} says {page.live}: deleted ones are back"
            )
            self.report.problem(path, at + head.flags_at, text)
        start = max(0, tally.earliest - chunk.first_seq)
        tally.live += chunk.live_count(start, chunk.count)
        tally.live_bytes += chunk.live_bytes(start, chunk.count)

    def _give_up(self, named: Sequence[Named]) -> None:
        for one in named:
            if one.tally is not None:
                one.tally.unreadable = True

    def _check_tallies(self) -> None:
        ahead, more = [], 0
        for tally in self._tallies:
            if tally.unreadable or (tally.live, tally.live_bytes) == (tally.count, tally.size):
                continue
            if tally.live < tally.count:
                ahead.append(tally)
                more += tally.count - tally.live
                continue
            text = (
                f"topic {tally.topic_id} ({shown(tally.name)}): {tally.live} live records of "
                f"{tally.live_bytes} bytes in its pages, {tally.count} of {tally.size} bytes in the snapshot"
            )
            self.report.problem(tally.path, None, text)
        if ahead:
            topics = number_text(len(ahead), "topic")
            text = f"the flags know of later deletes: {number_text(more, 'record')} of {topics}"
            self.report.note(ahead[0].path, None, f"{text}, such as topic {ahead[0].topic_id}")


def restore(store: SegmentStore, entry: list[object]) -> TopicState:
    """One entry by itself. Raises SnapshotDamaged."""
    return snapshot.restore(Registry(), store, entry)


def _sealed(topic: TopicState) -> list[Sealed]:
    return [piece for piece in topic.log.chunks if isinstance(piece, Sealed)]


def _tags_between(chunk: Chunk) -> tuple[bytes, bytes] | None:
    return chunk.tags.between() if chunk.tags is not None else None


def _number_of(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(".seg"))
