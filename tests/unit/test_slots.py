"""Places for requests and room for their bodies: bounded, and always given back."""

import pytest

from gateway.slots import BODY_FREE_BYTES, MIB, BodyBudget, BodyHold, Slots
from topics.errors import Throttled

KEY, OTHER = b"k" * 32, b"o" * 32


def test_one_more_than_the_bound_is_refused_with_the_limits_name_and_value() -> None:
    slots = Slots(inflight_per_key=2)
    with slots.request(KEY), slots.request(KEY):
        with pytest.raises(Throttled) as refused, slots.request(KEY):
            pass
        assert refused.value.detail == {"limit": "max_inflight_per_key", "max": 2}
        assert refused.value.retry_after_s >= 1
        with slots.request(OTHER):
            pass
    with slots.request(KEY):
        pass


def test_a_place_is_given_back_when_the_work_fails() -> None:
    slots = Slots(inflight_per_key=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), slots.request(KEY):
            raise ZeroDivisionError


def test_a_place_is_given_back_when_the_handler_is_closed() -> None:
    slots = Slots(inflight_per_key=1)

    async def handler() -> None:
        with slots.request(KEY):
            await _Never()

    for _ in range(3):
        handling = handler()
        handling.send(None)
        handling.close()


def test_no_bound_and_no_key_are_not_counted() -> None:
    for slots, key in ((Slots(inflight_per_key=0), KEY), (Slots(inflight_per_key=1), b"")):
        with slots.request(key), slots.request(key):
            pass


def full_budget() -> tuple[BodyBudget, BodyHold]:
    """A budget and the one body that fills it."""
    budget = BodyBudget(body_bytes_max=MIB)
    hold = budget.open()
    hold.add(BODY_FREE_BYTES + budget.bytes_max)
    return budget, hold


def test_several_of_the_largest_bodies_fit_at_a_time() -> None:
    assert BodyBudget(body_bytes_max=1024).bytes_max == 256 * MIB
    assert BodyBudget(body_bytes_max=64 * MIB).bytes_max == 256 * MIB
    assert BodyBudget(body_bytes_max=1024 * MIB).bytes_max == 4096 * MIB


def test_bodies_beyond_the_room_are_throttled_and_told_when_to_come_again() -> None:
    budget, _ = full_budget()
    late = budget.open()
    late.add(BODY_FREE_BYTES)
    with pytest.raises(Throttled) as refused:
        late.add(1)
    assert refused.value.detail == {"retry_after_ms": 1000}
    assert refused.value.retry_after_s == 1
    assert budget.bytes_held == budget.bytes_max


def test_the_last_byte_of_the_room_can_be_had() -> None:
    budget = BodyBudget(body_bytes_max=MIB)
    hold = budget.open()
    hold.add(BODY_FREE_BYTES + budget.bytes_max - 1)
    hold.add(1)
    with pytest.raises(Throttled):
        hold.add(1)


def test_small_bodies_are_not_counted_however_full_it_is() -> None:
    budget, _ = full_budget()
    for _ in range(100):
        small = budget.open()
        for _ in range(4):
            small.add(BODY_FREE_BYTES // 4)


def test_room_is_counted_byte_by_byte_and_given_back_once() -> None:
    budget = BodyBudget(body_bytes_max=MIB)
    first, second = budget.open(), budget.open()
    for hold in (first, second):
        for _ in range(10):
            hold.add(BODY_FREE_BYTES // 4)
    assert budget.bytes_held == 2 * (10 * BODY_FREE_BYTES // 4 - BODY_FREE_BYTES)
    first.close()
    first.close()
    assert budget.bytes_held == 10 * BODY_FREE_BYTES // 4 - BODY_FREE_BYTES
    second.close()
    assert budget.bytes_held == 0


def test_a_refused_body_gives_back_what_it_had() -> None:
    budget, filling = full_budget()
    filling.close()
    hold = budget.open()
    hold.add(budget.bytes_max)
    with pytest.raises(Throttled):
        hold.add(budget.bytes_max)
    hold.close()
    assert budget.bytes_held == 0


class _Never:
    def __await__(self):  # type: ignore[no-untyped-def]
        yield self
