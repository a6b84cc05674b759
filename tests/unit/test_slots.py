"""Places for requests: bounded per key, and always given back."""

import pytest

from gateway.slots import Slots
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


class _Never:
    def __await__(self):  # type: ignore[no-untyped-def]
        yield self
