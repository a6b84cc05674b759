"""Effective priority: who is served first when there is more work than time.

Manual priority if set, else a bonus for topics that somebody reads now; and in the queue a bonus
that grows with waiting, so that nothing starves.
"""

from topics.engine.config import TopicConfig

RECENCY_BONUS = 500.0
RECENCY_HALF_LIFE_MS = 30_000
RECENCY_END_MS = 300_000
WAITING_BONUS_PER_S = 100.0
WAITING_BONUS_MAX = 1000.0


def recency_bonus(last_read_ms: int | None, now_ms: int) -> float:
    if last_read_ms is None:
        return 0.0
    age_ms = max(0, now_ms - last_read_ms)
    if age_ms >= RECENCY_END_MS:
        return 0.0
    return float(RECENCY_BONUS * 0.5 ** (age_ms / RECENCY_HALF_LIFE_MS))


def waiting_bonus(waited_ms: float) -> float:
    return min(WAITING_BONUS_MAX, max(0.0, waited_ms) * WAITING_BONUS_PER_S / 1000)


def effective_priority(
    config: TopicConfig, *, last_read_ms: int | None, now_ms: int, waited_ms: float = 0.0
) -> float:
    if config.priority is not None:
        base = float(config.priority)
    else:
        base = recency_bonus(last_read_ms, now_ms) if config.auto_priority else 0.0
    return base + waiting_bonus(waited_ms)
