"""Effective priority: manual or recency, and a bonus that grows with waiting."""

import pytest

from topics.engine.config import TopicConfig
from topics.engine.priority import effective_priority, recency_bonus, waiting_bonus

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("age_ms", "bonus"),
    [
        (0, 500.0),
        (15_000, 500 * 0.5**0.5),
        (30_000, 250.0),
        (60_000, 125.0),
        (270_000, 500 / 512),
        (299_999, 500 * 0.5 ** (299_999 / 30_000)),
        (300_000, 0.0),
        (300_001, 0.0),
        (10**12, 0.0),
        (-5, 500.0),
    ],
)
def test_recency_starts_at_500_halves_every_30_s_and_ends_after_5_minutes(age_ms: int, bonus: float) -> None:
    assert recency_bonus(NOW - age_ms, NOW) == pytest.approx(bonus)


def test_a_topic_that_nobody_reads_has_no_recency() -> None:
    assert recency_bonus(None, NOW) == 0.0


@pytest.mark.parametrize(
    ("waited_ms", "bonus"),
    [(0, 0), (1, 0.1), (10, 1), (1000, 100), (9999, 999.9), (10_000, 1000), (10_001, 1000), (-1, 0)],
)
def test_waiting_brings_100_a_second_up_to_1000(waited_ms: float, bonus: float) -> None:
    assert waiting_bonus(waited_ms) == pytest.approx(bonus)


@pytest.mark.parametrize(
    ("priority", "automatic", "effective"),
    [
        (None, True, 500),
        (None, False, 0),
        (0, True, 0),
        (7, True, 7),
        (-1000, True, -1000),
        (1000, False, 1000),
    ],
)
def test_a_manual_priority_switches_recency_off(
    priority: int | None, automatic: bool, effective: float
) -> None:
    config = TopicConfig(priority=priority, auto_priority=automatic)
    assert effective_priority(config, last_read_ms=NOW, now_ms=NOW) == effective
    waited = effective_priority(config, last_read_ms=NOW, now_ms=NOW, waited_ms=2500)
    assert waited == effective + 250


def test_nothing_starves() -> None:
    """The least of all topics overtakes a busy one that keeps arriving, once it has waited long enough."""
    least = TopicConfig(priority=-1000)
    busy = effective_priority(TopicConfig(), last_read_ms=NOW, now_ms=NOW)
    assert effective_priority(least, last_read_ms=None, now_ms=NOW, waited_ms=10_000) == 0
    unread = effective_priority(TopicConfig(), last_read_ms=None, now_ms=NOW, waited_ms=5_001)
    assert unread > busy
