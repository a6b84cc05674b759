"""Which shard owns a topic: a stable hash of its name.

The answer decides in which directory a topic's data lies, so it never changes between versions; golden
values are in the tests. It depends on the name and the shard count, and on nothing else.
"""

from functools import lru_cache

import xxhash


@lru_cache(maxsize=8192)
def shard_of(name: str, shard_count: int) -> int:
    """XXH3-64 (seed 0) of the UTF-8 name, modulo the number of shards."""
    return xxhash.xxh3_64_intdigest(name.encode(), seed=0) % shard_count
