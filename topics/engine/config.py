"""The topic config object: parsed from a request, merged over what is there, echoed in full.

A request names some fields; absent ones keep their value (or the default on create). Values that the
contract clamps are clamped here, everything else out of range is refused with its field's name.
"""

from typing import Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from topics.engine.ids import check_topic_name
from topics.errors import InvalidRequest, TopicExistsIncompatible

Durability = Literal["ephemeral", "memory", "disk", "fsync"]
DURABILITY_CLASSES: tuple[str, ...] = get_args(Durability)

U64_MAX = 2**64 - 1
DAY_MS = 86_400_000
_CLAMPED = {"lease_ms": (100, DAY_MS), "claim_jitter_ms": (0, 5_000), "priority": (-1000, 1000)}


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's whole config, in the order in which it is shown."""

    type: Literal["log", "queue"] = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Literal["old", "reject"] = "old"
    durable: bool = False
    durability: Durability = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False

    def json(self) -> bytes:
        return msgspec.json.encode(self)


class ConfigPatch(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a request names."""

    type: Literal["log", "queue"] | UnsetType = UNSET
    ttl_ms: int | UnsetType = UNSET
    cap_records: int | UnsetType = UNSET
    cap_bytes: int | UnsetType = UNSET
    discard: Literal["old", "reject"] | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    priority: int | UnsetType | None = UNSET
    auto_priority: bool | UnsetType = UNSET
    auto_create: bool | UnsetType = UNSET
    idempotency_window_ms: int | UnsetType = UNSET
    dedupe_node: bool | UnsetType = UNSET
    lease_ms: int | UnsetType = UNSET
    claim_jitter_ms: int | UnsetType = UNSET
    max_deliveries: int | UnsetType = UNSET
    dead_letter: str | UnsetType | None = UNSET
    leases_durable: bool | UnsetType = UNSET


config_decoder = msgspec.json.Decoder(ConfigPatch)


def merged(topic: str, patch: ConfigPatch, base: TopicConfig | None, *, at: str = "") -> TopicConfig:
    """`patch` over `base` (None: the topic is new). `at` is where the patch stands in the request."""
    named = {name: value for name, value in msgspec.structs.asdict(patch).items() if value is not UNSET}
    for name, value in named.items():
        if isinstance(value, int) and not isinstance(value, bool):
            named[name] = _in_range(f"{at}{name}", name, value)
    if base is not None and named.get("type", base.type) != base.type:
        raise TopicExistsIncompatible(
            f'topic "{topic}" is a {base.type}; type cannot be changed to {named["type"]}',
            detail={"topic": topic, "field": f"{at}type", "reason": "type_changed"},
        )
    dead_letter = named.get("dead_letter")
    if isinstance(dead_letter, str):
        check_topic_name(dead_letter, field=f"{at}dead_letter")
        if dead_letter == topic:
            raise InvalidRequest(
                f'dead_letter must name another topic than "{topic}"', field=f"{at}dead_letter"
            )
    if "durability" not in named and "durable" in named:
        named["durability"] = "fsync" if named["durable"] else "disk"
    result = msgspec.structs.replace(base or TopicConfig(), **named)
    return msgspec.structs.replace(result, durable=result.durability == "fsync")


def _in_range(field: str, name: str, value: int) -> int:
    if value < 0 and name != "priority":
        raise InvalidRequest(f"{field} is {value}, it must not be negative", field=field, value=value)
    if name in _CLAMPED:
        low, high = _CLAMPED[name]
        return min(max(value, low), high)
    if value > U64_MAX:
        raise InvalidRequest(f"{field} is larger than {U64_MAX}", field=field, limit=U64_MAX)
    return value
