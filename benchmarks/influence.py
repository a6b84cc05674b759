"""What a client at full speed does to somebody else, who writes little to another topic or stream.

Both parties are measured by the same steady client. The loud one writes batches as fast as it can: it has
begun before the measurement does, and is ended after it.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Literal

from benchmarks import paced, raw_redis, wrk
from benchmarks.payloads import write_body
from benchmarks.processes import Child, client_result, start_client
from benchmarks.redis_server import RedisServer
from benchmarks.samples import PhaseFailed, Place, Sample, Work
from benchmarks.topics_server import TopicsServer

LOUD_CONNECTIONS = 32
LOUD_BATCH = 100
_PATIENCE_SECONDS = 60


def on_topics(*, loud: bool, priority: int) -> Work:
    """`priority` is the quiet topic's; the loud one has 0."""

    def work(place: Place) -> Sample:
        with TopicsServer(place.directory, place.cores.server) as server:
            server.create("quiet", {"priority": priority})
            server.create("loud", {"priority": 0})
            if not loud:
                sample = _steady(place, "topics", server.port)
            else:
                noise = wrk.Load(
                    port=server.port,
                    path="/v0/topics/loud?return_seqs=false",
                    bodies=[write_body(LOUD_BATCH)],
                    connections=LOUD_CONNECTIONS,
                    seconds=place.scale.seconds + _PATIENCE_SECONDS,
                )
                with noise.start(place.directory, "loud", place.cores.load) as child:
                    sample = _beside(child, place, "topics", server.port, lambda: server.head("loud"))
            server.stop()
        return sample

    return work


def on_redis(*, loud: bool) -> Work:
    def work(place: Place) -> Sample:
        with RedisServer(place.directory, place.cores.server) as server:
            if not loud:
                sample = _steady(place, "redis", server.port)
            else:
                noise = raw_redis.Job(
                    port=server.port,
                    stream="loud",
                    pipeline=LOUD_BATCH,
                    connections=LOUD_CONNECTIONS,
                    seconds=place.scale.seconds + _PATIENCE_SECONDS,
                )
                output = place.directory / "loud.out"
                with start_client(
                    "benchmarks.raw_redis", asdict(noise), output=output, cores=place.cores.load
                ) as child:
                    sample = _beside(
                        child, place, "redis", server.port, lambda: server.ask_number(b"XLEN", b"loud")
                    )
            server.stop()
        return sample

    return work


def _beside(
    loud: Child,
    place: Place,
    server: Literal["topics", "redis"],
    port: int,
    written: Callable[[], int],
) -> Sample:
    """The steady client's sample, with what the loud one wrote meanwhile."""
    loud.wait_for("the loud client", lambda: written() or None)
    before, began = written(), time.monotonic()
    sample = _steady(place, server, port)
    loud_records_per_second = (written() - before) / (time.monotonic() - began)
    if (code := loud.process.poll()) is not None:
        raise PhaseFailed(f"the loud client ended with {code} before the measurement: {loud.output()[-500:]}")
    return replace(sample, detail={"loud_records_per_second": loud_records_per_second})


def _steady(place: Place, server: Literal["topics", "redis"], port: int) -> Sample:
    job = paced.Job(server=server, port=port, target="quiet", seconds=place.scale.seconds)
    output = place.directory / "quiet.out"
    with start_client("benchmarks.paced", asdict(job), output=output, cores=place.cores.load) as child:
        result = paced.Result(**client_result(child, job.seconds + _PATIENCE_SECONDS))
    return Sample(
        per_second=result.answers / result.seconds,
        p50_us=result.p50_us,
        p99_us=result.p99_us,
        requests=result.answers,
        failures=result.failures,
        seconds=result.seconds,
    )
