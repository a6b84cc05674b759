"""The benchmark's arithmetic and its table: nothing is dropped, nothing is invented."""

import json

import pytest

from benchmarks import machine, report, runner
from benchmarks.processes import share_out
from benchmarks.rows import ROWS, Row, Target, chosen
from benchmarks.runner import OURS, REDIS, Outcome
from benchmarks.samples import Headline, Place, Sample, Scale
from benchmarks.stats import Figure, figure, percentile, ratios

SCALE = Scale(rounds=3, seconds=3)
MACHINE = machine.Machine(
    date="2025-01-02", commit="abc1234", changed=False, cpu="A CPU", cores=2, pinning="none", memory_gib=4.0,
    kernel="6.1", filesystem="ext4", python="3.11.7", wrk="4.1.0", redis="7.0.15", load_average="0.1 0.2 0.3",
)  # fmt: skip


def never(_place: Place) -> Sample:
    raise AssertionError("no work is done in these tests")


def row(
    name: str = "write",
    *,
    target: Target | None = None,
    base: str | None = None,
    headline: Headline = "per_second",
) -> Row:
    return Row(
        name=name, title=f"title of {name}", ours=never, redis=never, peer="XADD",
        target=target, base=base, headline=headline,
    )  # fmt: skip


def sample(per_second: float, *, p99_us: float = 900.0) -> Sample:
    return Sample(per_second=per_second, p50_us=120.0, p99_us=p99_us, requests=10, seconds=3.0)


def outcome(of: Row, ours: list[float | None], redis: list[float | None]) -> Outcome:
    def samples(values: list[float | None]) -> list[Sample | None]:
        return [None if value is None else sample(value) for value in values]

    return Outcome(of, {OURS: samples(ours), REDIS: samples(redis)})


def cells(outcomes: list[Outcome], number: int = -1) -> list[str]:
    text = report.Table(outcomes).line(outcomes[number])
    return [cell.strip() for cell in text.strip("|").split("|")]


def test_a_figure_is_the_median_of_all_rounds_with_their_range() -> None:
    assert figure([3.0, 1.0, 2.0]) == Figure(2.0, 1.0, 3.0, rounds=3)
    assert figure([4.0, 1.0]) == Figure(2.5, 1.0, 4.0, rounds=2)


def test_a_round_without_a_value_is_counted_as_missing_not_as_zero() -> None:
    assert figure([None, 5.0, 7.0]) == Figure(6.0, 5.0, 7.0, rounds=2)
    assert figure([0.0, 5.0, 7.0]) == Figure(5.0, 0.0, 7.0, rounds=3)
    assert figure([None, None]) is None
    assert figure([]) is None


def test_ratios_are_taken_within_a_round() -> None:
    assert ratios([10.0, 30.0], [20.0, 10.0]) == [0.5, 3.0]
    assert ratios([10.0, None, 1.0], [None, 10.0, 0.0]) == [None, None, None]
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0], [])


def test_percentiles_are_values_that_were_measured() -> None:
    hundred = [float(value) for value in range(1, 101)]
    assert (percentile(hundred, 50), percentile(hundred, 99), percentile(hundred, 100)) == (50, 99, 100)
    assert percentile([1.0, 2.0, 3.0], 50) == 2
    assert percentile([1.0, 2.0, 3.0], 99) == 3
    assert percentile([7.0], 1) == 7
    for values, percent in (([], 50), ([1.0], 0), ([1.0], 101)):
        with pytest.raises(ValueError, match="percent"):
            percentile(values, percent)


def test_a_line_shows_medians_ranges_latencies_and_the_ratio() -> None:
    line = cells([outcome(row(target=Target("redis", 0.45, 0.8)), [50_000, 40_000, 60_000], [1e5, 1e5, 1e5])])
    assert line == [
        "title of write<br>`write`", "50,000 /s (40,000-60,000)", "120 µs / 900 µs",
        "100,000 /s (100,000-100,000)<br>XADD", "120 µs / 900 µs", "**0.50** (0.40-0.60)", "-",
        "0.45, 0.8 x Redis", "floor reached",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "standing"),
    [(44.0, "below the floor"), (45.0, "floor reached"), (79.0, "floor reached"), (80.0, "aim reached")],
)
def test_the_standing_is_told_against_floor_and_aim(ours: float, standing: str) -> None:
    target = Target("redis", 0.45, 0.8)
    assert cells([outcome(row(target=target), [ours], [100.0])])[-1] == standing


def test_a_target_may_be_a_figure_or_a_share_of_another_row() -> None:
    plain = outcome(row("plain"), [200.0], [100.0])
    tags = outcome(row("tags", base="plain", target=Target("base", 0.25, 0.5)), [60.0], [100.0])
    line = cells([plain, tags])
    assert (line[5], line[6], line[8]) == ("**0.60** (0.60-0.60)", "**0.30** (0.30-0.30)", "floor reached")
    replay = outcome(row("replay", target=Target("figure", 1e6, 4e6)), [4_200_000.0], [])
    assert cells([replay])[1] == "4.20 M /s (4.20 M-4.20 M)"
    assert cells([replay])[7:] == ["1.00 M, 4.00 M /s", "aim reached"]


def test_rounds_that_failed_show_in_the_cell_and_below_the_table() -> None:
    some = outcome(row(target=Target("redis", 1, 2)), [10.0, None, 20.0], [None, None, None])
    some.problems.append("topics, round 2: a server\nthat ended")
    line = cells([some])
    assert line[1] == "15 /s (10-20, 2 of 3 rounds)"
    assert line[3:6] == ["-<br>XADD", "-", "-"]
    assert line[-1] == "not measured"
    text = report.markdown([some], MACHINE, SCALE, ["redis-server not installed"])
    assert "\n- `write`: topics, round 2: a server that ended\n" in text
    assert "Skipped:\n- redis-server not installed\n" in text
    assert "Failures: none." in report.markdown([outcome(row(), [1.0], [1.0])], MACHINE, SCALE, [])


def test_a_latency_row_shows_its_percentile_as_the_figure() -> None:
    slow = Outcome(row(headline="p99_us"), {OURS: [sample(400, p99_us=12_345)], REDIS: [sample(400)]})
    line = cells([slow])
    assert line[1] == "p99 12.3 ms (12.3 ms-12.3 ms)"
    assert line[5] == "**13.72** (13.72-13.72)"


def test_the_table_says_what_it_was_measured_on() -> None:
    text = report.markdown([outcome(row(), [1.0], [1.0])], MACHINE, SCALE, [])
    for fact in ("2025-01-02", "abc1234", "A CPU", "2 cores", "6.1", "ext4", "3.11.7", "4.1.0", "7.0.15"):
        assert fact in text
    assert "TOPICS_WAL_SHARDS=1" in text


def test_every_round_is_kept_in_the_json() -> None:
    of = row(target=Target("redis", 0.45, 0.8))
    kept = json.loads(report.as_json([outcome(of, [5.0, None, 7.0], [10.0, 10.0, 10.0])], MACHINE, SCALE, []))
    (only,) = kept["rows"]
    assert [one and one["per_second"] for one in only["rounds"][OURS]] == [5.0, None, 7.0]
    assert only["figures"]["to_redis"] == {"median": 0.6, "low": 0.5, "high": 0.7, "rounds": 2}
    assert (only["standing"], only["target"]["floor"]) == ("floor reached", 0.45)
    assert (kept["machine"]["commit"], kept["scale"]["rounds"]) == ("abc1234", 3)


def test_numbers_are_short_and_durations_carry_their_unit() -> None:
    shown = [report.number(value) for value in (0.1234, 4.567, 81.23, 1234.5, 999_999.0, 1_234_567.0)]
    assert shown == ["0.123", "4.57", "81.2", "1,234", "999,999", "1.23 M"]
    assert [report.duration(us) for us in (23.4, 999, 1000, 57_800)] == [
        "23.4 µs",
        "999 µs",
        "1 ms",
        "57.8 ms",
    ]
    assert len(report.one_line("x" * 5000)) < 500


def test_rows_are_chosen_by_name_and_bring_their_base() -> None:
    def names(pattern: str | None, *, quick: bool = False, long: bool = False) -> list[str]:
        return [one.name for one in chosen(pattern, quick=quick, long=long)]

    assert names("include_tags") == ["diff_1000x200B_c32", "diff_1000x200B_c32_include_tags"]
    assert names("replay*") == ["replay_1000x200B"]
    assert names("no such row") == []
    assert names(None, long=True) == [one.name for one in ROWS]
    assert not any("sustained" in name for name in names(None))
    assert not any("sustained" in name for name in names("write"))
    assert 0 < len(names(None, quick=True)) < len(names(None))
    assert len({one.name for one in ROWS}) == len(ROWS)


def test_a_party_without_its_tools_is_left_out_of_its_rows_alone() -> None:
    replay = next(one for one in ROWS if one.name.startswith("replay"))
    assert list(runner.parties(row(), {})) == [OURS, REDIS]
    assert list(runner.parties(row(), {OURS: "no wrk"})) == [REDIS]
    assert list(runner.parties(row(), {REDIS: "no redis-server"})) == [OURS]
    assert list(runner.parties(replay, {OURS: "no wrk"})) == [OURS, REDIS]


def test_load_and_server_get_separate_cores_where_there_are_enough() -> None:
    assert not share_out(frozenset({0, 1})).load
    shared = share_out(frozenset(range(8)))
    assert (shared.server, shared.load) == (frozenset(range(6)), frozenset({6, 7}))
