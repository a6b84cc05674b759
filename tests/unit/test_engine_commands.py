"""Requests against a whole shard: one guarantee each, small enough to read."""

import pytest

from tests.fakes.model import ManualClock, Page, Reply, Server
from topics.protocol.messages import Op


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> Server:
    return Server(clock)


def put(server: Server, **config: object) -> Reply:
    return server.request(Op.PUT_TOPIC, "a", config)


def write(server: Server, *records: object, **fields: object) -> Reply:
    given = [record if isinstance(record, dict) else {"data": record} for record in records or (1,)]
    return server.request(Op.WRITE, "a", {"records": given, **fields})


def delete(server: Server, **body: object) -> Reply:
    return server.request(Op.DELETE_RECORDS, "a", body)


def diff(server: Server, from_seq: int = 0, **options: object) -> Page:
    return server.request(Op.DIFF, "a", {"from_seq": from_seq, **options}).page()


def state(server: Server, **params: object) -> dict[str, object]:
    return server.call(Op.GET_TOPIC, "a", b"", **params).json


def seqs(page: Page) -> list[int]:
    return [record.seq for record in page.records]


def gap(page: Page) -> tuple[int, int, str] | None:
    found = page.tombstone
    return None if found is None else (found.gap_from, found.gap_to, found.reason)


def power_cut(server: Server) -> None:
    """The unkindest cut: whatever was not synced is gone."""
    server.power_cut(next(server.disk.crash_states()))


# -- writing


def test_a_write_is_stamped_with_the_time_it_is_run_at(server: Server, clock: ManualClock) -> None:
    write(server)
    clock.pass_ms(60_000)
    write(server)
    first, second = diff(server).records
    assert second.ts - first.ts == 60_000
    assert state(server)["last_write_ts"] == second.ts == clock.wall_ms


def test_time_never_goes_back_in_a_topic(server: Server, clock: ManualClock) -> None:
    write(server)
    clock.pass_ms(-5000)
    write(server)
    server.kill()
    write(server)
    assert len({record.ts for record in diff(server).records}) == 1


def test_the_node_of_a_record_wins_over_the_node_of_its_batch(server: Server) -> None:
    write(server, {"data": 1}, {"data": 2, "node": "own"}, node="batch")
    assert [record.node for record in diff(server).records] == ["batch", "own"]


@pytest.mark.parametrize("create", [None, True])
def test_a_write_creates_its_topic_with_its_config(server: Server, create: bool | None) -> None:
    fields: dict[str, object] = {} if create is None else {"create": create}
    reply = write(server, 1, config={"cap_records": 5}, **fields)
    assert (reply.status, reply.json["created"]) == (201, True)
    reply = write(server, 1, config={"cap_records": 9}, **fields)
    assert (reply.status, reply.json["created"]) == (200, False)
    assert server.request(Op.PUT_TOPIC, "a", {}).json["config"]["cap_records"] == 5


def test_a_write_that_may_not_create_is_404_and_creates_nothing(server: Server) -> None:
    assert write(server, 1, create=False).error == "topic_not_found"
    assert server.call(Op.GET_TOPIC, "a").status == 404
    write(server)
    assert write(server, 1, create=False).status == 200


def test_seqs_can_be_left_out_of_the_answer(server: Server) -> None:
    body = b'{"records":[{"data":1},{"data":2}]}'
    assert "seqs" not in server.call(Op.WRITE, "a", body, return_seqs=False).json
    answer = server.call(Op.WRITE, "a", body).json
    assert (answer["seqs"], answer["first_seq"], answer["last_seq"]) == ([3, 4], 3, 4)


# -- full topics


@pytest.mark.parametrize("discard", ["old", "reject"])
def test_a_record_larger_than_the_whole_cap_is_never_taken(server: Server, discard: str) -> None:
    put(server, cap_bytes=3, discard=discard)
    assert write(server, 123).status == 200
    assert (write(server, 1234).status, write(server, 1234).error) == (400, "record_too_large")
    assert state(server)["head_seq"] == 1


def test_a_write_that_can_never_fit_into_a_reject_topic_is_400_even_while_it_is_full(server: Server) -> None:
    put(server, cap_records=2, cap_bytes=10, discard="reject")
    write(server, 1, 1)
    assert write(server, 1, 1, 1).error == "record_too_large", "three records, two are allowed"
    assert write(server, 12345678, 12345678).error == "record_too_large", "sixteen bytes, ten are allowed"
    assert (write(server, 1).status, write(server, 1).error) == (422, "topic_full")
    assert state(server)["head_seq"] == 2


@pytest.mark.parametrize(("cap", "value"), [("cap_records", 2), ("cap_bytes", 2)])
def test_a_reject_topic_takes_all_of_a_write_or_nothing(server: Server, cap: str, value: int) -> None:
    put(server, discard="reject", **{cap: value})
    assert write(server, 1).status == 200
    assert write(server, 1, 2).error == "topic_full"
    assert seqs(diff(server)) == [1]
    assert write(server, 2).status == 200
    delete(server, before_seq=2)
    assert write(server, 3).status == 200
    assert seqs(diff(server)) == [2, 3]


def test_a_write_into_an_absent_topic_that_cannot_hold_it_creates_nothing(server: Server) -> None:
    assert write(server, 12, config={"cap_bytes": 1}).error == "record_too_large"
    assert server.call(Op.GET_TOPIC, "a").status == 404


def test_a_batch_larger_than_the_cap_keeps_its_newest_records(server: Server) -> None:
    put(server, cap_records=2)
    assert write(server, 1, 2, 3, 4, 5).json["seqs"] == [1, 2, 3, 4, 5]
    page = diff(server)
    assert (seqs(page), gap(page)) == ([4, 5], (1, 3, "cap"))


def test_expired_records_make_room_in_a_reject_topic(server: Server, clock: ManualClock) -> None:
    put(server, cap_records=1, discard="reject", ttl_ms=10)
    write(server)
    clock.pass_ms(11)
    assert write(server).status == 200


# -- idempotency


def test_a_retry_gets_the_first_answer_and_changes_nothing(server: Server) -> None:
    assert write(server, 1, 2, idempotency_key="k").json["deduped"] is False
    write(server, 3)
    reply = write(server, "another", "body", "altogether", idempotency_key="k")
    answer = reply.json
    assert (reply.status, answer["created"], answer["deduped"]) == (200, False, True)
    assert (answer["seqs"], answer["count"], answer["head_seq"]) == ([1, 2], 2, 3)


def test_a_key_is_checked_before_the_topic_is_found_full(server: Server) -> None:
    put(server, cap_records=1, discard="reject")
    write(server, 1, idempotency_key="k")
    assert write(server, 1, idempotency_key="k").json["deduped"] is True
    assert write(server, 1, idempotency_key="l").error == "topic_full"
    delete(server, before_seq=2)
    assert write(server, 1, idempotency_key="l").json["deduped"] is False, "a refused write left no key"


def test_a_key_outlives_its_records_and_restarts_but_not_its_topic(server: Server) -> None:
    write(server, 1, idempotency_key="k")
    delete(server, before_seq=2)
    server.kill()
    assert write(server, 1, idempotency_key="k").json["deduped"] is True
    server.restart()
    assert write(server, 1, idempotency_key="k").json["deduped"] is True
    server.call(Op.DELETE_TOPIC, "a")
    assert write(server, 1, idempotency_key="k").json["deduped"] is False


@pytest.mark.parametrize(("waited_ms", "deduped"), [(99, True), (100, False)])
@pytest.mark.parametrize("killed", [False, True])
def test_a_key_is_known_for_exactly_its_window(
    server: Server, clock: ManualClock, waited_ms: int, deduped: bool, killed: bool
) -> None:
    put(server, idempotency_window_ms=100)
    write(server, 1, idempotency_key="k")
    clock.pass_ms(waited_ms)
    if killed:
        server.kill()
    assert write(server, 1, idempotency_key="k").json["deduped"] is deduped


def test_keys_of_two_topics_do_not_meet(server: Server) -> None:
    write(server, 1, idempotency_key="k")
    body = {"records": [{"data": 1}], "idempotency_key": "k"}
    assert server.request(Op.WRITE, "b", body).json["deduped"] is False


# -- reading


def test_a_topic_can_opt_out_of_the_node_filter(server: Server) -> None:
    write(server, {"data": 1, "node": "n"}, {"data": 2, "tag": "t"})
    assert seqs(diff(server, node="n")) == [2]
    put(server, dedupe_node=False)
    page = diff(server, node=["n"], include_tags=True, limit=5)
    assert seqs(page) == [1, 2]
    assert page.records[1].tag == "t"
    assert seqs(diff(server, node="n", limit=1)) == [1]


def test_a_cursor_of_an_earlier_life_is_told_and_reads_the_new_one(server: Server) -> None:
    write(server, 1, 2, 3)
    server.call(Op.DELETE_TOPIC, "a")
    put(server)
    page = diff(server, 3)
    assert (gap(page), page.next_from_seq, page.caught_up) == ((1, 0, "recreated"), 0, True)
    write(server, "new")
    page = diff(server, 3)
    assert (gap(page), seqs(page), page.next_from_seq) == ((1, 1, "recreated"), [1], 1)
    assert gap(diff(server, 1)) is None, "the head itself is an ordinary tail"


@pytest.mark.parametrize("cursor", [2**63, 2**64 - 1])
def test_the_largest_cursor_is_only_ahead(server: Server, cursor: int) -> None:
    write(server)
    assert gap(diff(server, cursor)) == (1, 1, "recreated")


# -- deleting


def test_a_delete_is_for_what_exists_at_the_call(server: Server) -> None:
    write(server, {"data": 1, "tag": "t"})
    assert delete(server, match="t").json["deleted"] == 1
    write(server, {"data": 2, "tag": "t"})
    assert seqs(diff(server)) == [2]
    server.kill()
    assert seqs(diff(server)) == [2]


def test_a_bound_and_a_match_are_both_needed(server: Server) -> None:
    write(server, *[{"data": n, "tag": tag} for n, tag in enumerate(["m", "x", "m", "m"])])
    assert delete(server, match=["tag", "Eq", "m"], before_seq=4).json["deleted"] == 2
    assert seqs(diff(server)) == [2, 4]


def test_untagged_records_match_nothing(server: Server) -> None:
    write(server, 1, {"data": 2, "tag": ""})
    assert delete(server, match=["tag", "Glob", "*"]).json["deleted"] == 1
    assert seqs(diff(server)) == [1]


@pytest.mark.parametrize("before_seq", [0, 1])
def test_a_bound_below_the_first_record_deletes_nothing(server: Server, before_seq: int) -> None:
    write(server)
    assert delete(server, before_seq=before_seq).json["deleted"] == 0


def test_a_delete_is_silent_and_permanent(server: Server) -> None:
    write(server, 1, 2, 3)
    delete(server, before_seq=3)
    for end in (server.restart, server.kill):
        end()
        page = diff(server)
        assert (gap(page), seqs(page), page.earliest_seq) == (None, [3], 3)


def test_a_logged_record_stays_deleted_whatever_its_topic_has_become(server: Server) -> None:
    put(server, durability="fsync")
    write(server, 1, 2)
    put(server, durability="ephemeral")
    write(server, 3)
    delete(server, before_seq=2)
    server.kill()
    assert seqs(diff(server)) == [2]


# -- changing the config


def test_what_the_old_ttl_has_taken_stays_taken(server: Server, clock: ManualClock) -> None:
    put(server, ttl_ms=10)
    write(server)
    clock.pass_ms(11)
    put(server, ttl_ms=0)
    assert (gap(diff(server)), seqs(diff(server))) == ((1, 1, "ttl"), [])
    server.kill()
    assert (gap(diff(server)), seqs(diff(server))) == ((1, 1, "ttl"), [])


def test_a_tightened_cap_takes_effect_at_once_and_lasts(server: Server) -> None:
    write(server, 1, 2, 3)
    put(server, cap_records=1)
    put(server, cap_records=0)
    assert (gap(diff(server)), seqs(diff(server)), state(server)["count"]) == ((1, 2, "cap"), [3], 1)
    server.kill()
    assert (gap(diff(server)), seqs(diff(server)), state(server)["count"]) == ((1, 2, "cap"), [3], 1)


def test_the_type_of_a_topic_is_immutable(server: Server) -> None:
    put(server)
    assert (put(server, type="queue").status, put(server, type="queue").error) == (
        409,
        "topic_exists_incompatible",
    )
    assert put(server, type="log").status == 200


def test_priority_is_reported_after_the_touch(server: Server, clock: ManualClock) -> None:
    put(server)
    untouched = state(server, touch=False)
    assert (untouched["effective_priority"], untouched["last_read_ts"]) == (0, None)
    touched = state(server)
    assert (touched["effective_priority"], touched["last_read_ts"]) == (500, clock.wall_ms)
    clock.pass_ms(30_000)
    assert state(server, touch=False)["effective_priority"] == 250
    clock.pass_ms(270_000)
    assert state(server, touch=False)["effective_priority"] == 0
    diff(server)
    assert state(server, touch=False)["effective_priority"] == 500
    put(server, priority=-5)
    assert state(server)["effective_priority"] == -5


# -- crashes


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_killed_process_loses_nothing_that_was_acknowledged(server: Server, durability: str) -> None:
    put(server, durability=durability)
    write(server, 1, 2)
    server.kill()
    page = diff(server)
    assert (seqs(page), gap(page), page.head_seq) == ([1, 2], None, 2)


def test_fsync_survives_a_power_cut_also_for_deletes(server: Server) -> None:
    put(server, durability="fsync")
    write(server, 1, 2)
    delete(server, before_seq=2)
    power_cut(server)
    assert (seqs(diff(server)), gap(diff(server))) == ([2], None)


def test_a_record_keeps_the_promise_of_the_class_it_was_written_under(server: Server) -> None:
    put(server, durability="fsync")
    write(server, 1)
    put(server, durability="ephemeral")
    write(server, 2)
    put(server, durability="fsync")
    write(server, 3)
    power_cut(server)
    assert (seqs(diff(server)), gap(diff(server))) == ([1], None)
    page = diff(server, 1)
    assert (gap(page), seqs(page)) == ((2, 2, "cap"), [3])


@pytest.mark.parametrize("crash", ["restart", "kill", "power_cut"])
def test_ephemeral_records_are_lost_under_a_tombstone_and_their_seqs_with_them(
    server: Server, crash: str
) -> None:
    put(server, durability="ephemeral")
    write(server, 1, 2)
    power_cut(server) if crash == "power_cut" else getattr(server, crash)()
    told = gap(diff(server))
    assert told is not None
    assert told[0] == 1
    assert told[1] >= 2
    assert told[1] == 2 or crash != "restart"
    assert write(server, 3).json["first_seq"] == told[1] + 1
    assert (seqs(diff(server)), gap(diff(server, 1))) == ([told[1] + 1], (2, told[1], "cap"))


@pytest.mark.parametrize("crash", ["restart", "kill", "power_cut"])
def test_seqs_of_ephemeral_records_are_not_reused_after_a_change_of_class(server: Server, crash: str) -> None:
    put(server, durability="ephemeral")
    write(server, 1, 2)
    put(server, durability="fsync")
    power_cut(server) if crash == "power_cut" else getattr(server, crash)()
    told = gap(diff(server))
    assert told is not None
    assert told[0] == 1
    assert told[1] == 2 or (told[1] > 2 and crash == "power_cut")
    assert write(server, 3).json["first_seq"] == told[1] + 1


def test_what_a_cap_has_taken_stays_taken_over_a_crash(server: Server) -> None:
    put(server, cap_records=1, durability="fsync")
    write(server, 1)
    write(server, 2)
    put(server, cap_records=0)
    server.kill()
    assert (gap(diff(server)), seqs(diff(server))) == ((1, 1, "cap"), [2])
    put(server, cap_records=1)
    write(server, 3)
    power_cut(server)
    assert (gap(diff(server)), seqs(diff(server))) == ((1, 2, "cap"), [3])


def test_a_page_that_was_filtered_out_is_not_the_end(server: Server) -> None:
    write(server, {"data": 1, "node": "n"}, 2)
    page = diff(server, limit=1)
    assert (seqs(page), page.caught_up, page.lag) == ([1], False, 1)
    page = diff(server, 1, node="n")
    assert (seqs(page), page.caught_up, page.lag) == ([2], True, 0)


def test_an_unsynced_tail_is_told_exactly_and_its_seqs_are_never_reused(server: Server) -> None:
    put(server, durability="fsync")
    write(server, "kept")
    put(server, durability="disk")
    write(server, "lost", "lost")
    power_cut(server)
    assert (seqs(diff(server)), gap(diff(server))) == ([1], None), "what is below comes first, alone"
    told = gap(diff(server, 1))
    assert told is not None
    assert told[0] == 2
    assert told[1] >= 3
    assert write(server, "new").json["first_seq"] == told[1] + 1
    assert seqs(diff(server, 1)) == [told[1] + 1]
    assert gap(diff(server, 2)) == (3, told[1], "cap"), "a cursor inside the hole"


def test_an_idle_topic_gets_no_false_tombstone(server: Server, clock: ManualClock) -> None:
    write(server, 1)
    for _ in range(3):
        clock.pass_ms(1500)
        server.tick()
    power_cut(server)
    page = diff(server, 1)
    assert (gap(page), page.head_seq, page.caught_up) == (None, 1, True)


def test_a_topic_and_its_config_survive_a_power_cut_in_every_class(server: Server) -> None:
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        put(server, durability=durability, ttl_ms=77)
        power_cut(server)
        config = server.request(Op.PUT_TOPIC, "a", {}).json["config"]
        assert (config["durability"], config["ttl_ms"]) == (durability, 77)
    server.call(Op.DELETE_TOPIC, "a")
    power_cut(server)
    assert server.call(Op.GET_TOPIC, "a").status == 404


def test_expiry_survives_a_crash(server: Server, clock: ManualClock) -> None:
    put(server, ttl_ms=10)
    write(server, 1)
    clock.pass_ms(11)
    write(server, 2)
    assert gap(diff(server)) == (1, 1, "ttl")
    server.kill()
    page = diff(server)
    assert (gap(page), seqs(page)) == ((1, 1, "ttl"), [2])
