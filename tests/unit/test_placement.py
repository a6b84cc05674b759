"""Placement is part of the data format: these values must never change."""

import pytest

from topics.engine.placement import shard_of


@pytest.mark.parametrize(
    ("name", "of_2", "of_4", "of_8", "of_7"),
    [
        ("jobs", 1, 3, 7, 5),
        ("events", 1, 3, 7, 0),
        ("a", 1, 3, 7, 1),
        ("orders.eu-1", 1, 3, 3, 2),
        ("render-queue:tenantA", 1, 1, 1, 0),
        ("x" * 255, 1, 1, 5, 0),
    ],
)
def test_a_topic_stays_on_its_shard_in_every_version(
    name: str, of_2: int, of_4: int, of_8: int, of_7: int
) -> None:
    assert [shard_of(name, count) for count in (2, 4, 8, 7)] == [of_2, of_4, of_8, of_7]


def test_one_shard_owns_everything() -> None:
    assert {shard_of(f"topic-{n}", 1) for n in range(100)} == {0}


def test_names_spread_over_all_shards() -> None:
    counts = [0] * 8
    for n in range(8000):
        counts[shard_of(f"tenant:{n}", 8)] += 1
    assert min(counts) > 800
    assert max(counts) < 1200
