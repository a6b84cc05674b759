"""What every handler needs to know about the process it runs in."""

from dataclasses import dataclass, field
from typing import Final

import trio

from gateway.keys import KeyStore
from gateway.origin import OriginPolicy
from gateway.slots import BodyBudget, Slots
from shards.client import ShardPool
from topics.engine.limits import Limits
from topics.histogram import Histogram

# zlib releases the GIL, so more threads than this would only take the cores from the shards.
ZLIB_THREADS_MAX: Final = 2


@dataclass(slots=True, kw_only=True)
class Gateway:
    pool: ShardPool
    limits: Limits
    version: str
    # CLOCK_MONOTONIC at the start of the process.
    started_ns: int
    # Without any keys in it, everyone may do everything.
    keys: KeyStore = field(default_factory=KeyStore)
    origins: OriginPolicy = field(default_factory=OriginPolicy)
    slots: Slots = field(default_factory=Slots)
    # How often the gateway has been started.
    epoch: int = 1
    # Microseconds from a request's head to its response, by route.
    latencies: dict[str, Histogram] = field(default_factory=dict)
    # True from SIGTERM on: requests under way finish, new ones are told to go elsewhere.
    draining: bool = False
    # Requests whose answer has not been sent yet.
    under_way: int = 0
    # For front doors: a body is added to it as it arrives. Its size follows from the limits.
    bodies: BodyBudget = field(init=False)
    zlib_threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(ZLIB_THREADS_MAX))

    def __post_init__(self) -> None:
        self.bodies = BodyBudget(body_bytes_max=self.limits.body_bytes)
