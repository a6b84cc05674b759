"""Write keys: remembered for exactly their window, forgotten in whole buckets, never mixed up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.idempotency import IdempotencyWindow, Remembered, digest

KEY, OTHER = digest("k"), digest("other")


def window_with(*entries: tuple[bytes, Remembered], window_ms: int) -> IdempotencyWindow:
    window = IdempotencyWindow()
    for key, entry in entries:
        window.remember(key, entry, window_ms=window_ms)
    return window


@pytest.mark.parametrize(("age_ms", "known"), [(0, True), (1, True), (99, True), (100, False), (101, False)])
def test_a_key_is_known_for_exactly_its_window(age_ms: int, known: bool) -> None:
    entry = Remembered(7, 3, 1000)
    window = window_with((KEY, entry), window_ms=100)
    found = window.find(KEY, now_ms=1000 + age_ms, window_ms=100)
    assert found == (entry if known else None)


def test_a_window_of_zero_remembers_nothing() -> None:
    window = window_with((KEY, Remembered(1, 1, 1000)), window_ms=0)
    assert window.find(KEY, now_ms=1000, window_ms=0) is None


def test_a_key_that_was_used_again_after_its_window_counts_from_then_on() -> None:
    window = window_with((KEY, Remembered(1, 1, 1000)), (KEY, Remembered(2, 1, 1100)), window_ms=100)
    found = window.find(KEY, now_ms=1199, window_ms=100)
    assert found == Remembered(2, 1, 1100)
    assert window.find(KEY, now_ms=1200, window_ms=100) is None


def test_keys_do_not_stand_for_each_other() -> None:
    window = window_with((KEY, Remembered(1, 1, 1000)), window_ms=100)
    assert window.find(OTHER, now_ms=1000, window_ms=100) is None


def test_a_shorter_window_takes_effect_at_once() -> None:
    window = window_with((KEY, Remembered(1, 1, 1000)), window_ms=1000)
    assert window.find(KEY, now_ms=1050, window_ms=50) is None
    assert window.find(KEY, now_ms=1049, window_ms=50) == Remembered(1, 1, 1000)


def test_a_longer_window_keeps_what_is_still_known() -> None:
    window = window_with((KEY, Remembered(1, 1, 1000)), window_ms=10)
    assert window.find(KEY, now_ms=1999, window_ms=1000) == Remembered(1, 1, 1000)


def test_what_is_out_of_its_window_is_forgotten_in_memory_too() -> None:
    window = IdempotencyWindow()
    for number in range(1000):
        window.remember(digest(str(number)), Remembered(number, 1, number * 10), window_ms=80)
        window.find(KEY, now_ms=number * 10, window_ms=80)
        kept = sum(len(entries) for _, entries in window._buckets)
        assert kept <= 11, "the window, and one bucket that is expiring"
        assert len(window._buckets) <= 10


def test_a_bucket_is_kept_for_its_youngest_key() -> None:
    window = window_with(
        (OTHER, Remembered(1, 1, 1000)),
        (KEY, Remembered(2, 1, 1009)),
        (digest("next bucket"), Remembered(3, 1, 1050)),
        window_ms=80,
    )
    assert window.find(OTHER, now_ms=1080, window_ms=80) is None
    assert window.find(KEY, now_ms=1088, window_ms=80) == Remembered(2, 1, 1009)
    assert window.find(KEY, now_ms=1089, window_ms=80) is None


def test_many_keys_in_one_instant_share_one_bucket() -> None:
    window = IdempotencyWindow()
    for number in range(100):
        window.remember(digest(str(number)), Remembered(number, 1, 1000), window_ms=120_000)
    assert len(window._buckets) == 1
    assert window.find(digest("99"), now_ms=1000, window_ms=120_000) == Remembered(99, 1, 1000)


def test_a_digest_is_16_bytes_and_depends_on_every_character() -> None:
    keys = ["a", "b", "a ", "A", "ä", "a" * 256, "\x00", "😀"]
    assert {len(digest(key)) for key in keys} == {16}
    assert len({digest(key) for key in keys}) == len(keys)
    # It stands in the log, so it never changes.
    assert digest("client-batch-7f3a").hex() == GOLDEN


GOLDEN = "884030ce055bb455f1c42236e2f6071b"


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.sampled_from(["write", "look"])), max_size=40
    ),
    window_ms=st.sampled_from([0, 1, 7, 8, 20, 100]),
)
def test_the_window_agrees_with_a_plain_dict(steps: list[tuple[str, int, str]], window_ms: int) -> None:
    window, plain, now_ms = IdempotencyWindow(), dict[str, Remembered](), 0
    for number, (key, wait_ms, what) in enumerate(steps):
        now_ms += wait_ms
        entry = plain.get(key)
        known = entry if entry is not None and now_ms - entry.ts < window_ms else None
        assert window.find(digest(key), now_ms=now_ms, window_ms=window_ms) == known
        if what == "write" and known is None:
            plain[key] = Remembered(number, 1, now_ms)
            window.remember(digest(key), plain[key], window_ms=window_ms)
