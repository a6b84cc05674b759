"""What a client at full speed does to somebody else, who writes little to another topic or stream.

Both parties are measured by the same steady client; the loud one writes batches as fast as it can and
outlasts it. The noise must have begun before the measurement does.
"""

from dataclasses import asdict, replace
from typing import Literal

from benchmarks import paced, raw_redis, wrk
from benchmarks.payloads import write_body
from benchmarks.processes import client_result, start_client
from benchmarks.redis_server import RedisServer
from benchmarks.samples import PhaseFailed, Place, Sample, Work
from benchmarks.topics_server import TopicsServer

LOUD_CONNECTIONS = 32
LOUD_BATCH = 100
# Time for the steady client to start and for its last answers.
_LOUD_EXTRA_SECONDS = 3
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
                    port=server.port, path="/v0/topics/loud?return_seqs=false", bodies=[write_body(LOUD_BATCH)],
                    connections=LOUD_CONNECTIONS, seconds=place.scale.seconds + _LOUD_EXTRA_SECONDS,
                )  # fmt: skip
                with noise.start(place.directory, "loud", place.cores.load) as child:
                    child.wait_for("the loud client", lambda: server.head("loud") or None)
                    sample = _steady(place, "topics", server.port)
                    _still_loud(child.process.poll())
                    report = wrk.finished(child, noise.seconds)
                sample = _beside(sample, report.answered_well_per_second * LOUD_BATCH)
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
                    port=server.port, connections=LOUD_CONNECTIONS, stream="loud", pipeline=LOUD_BATCH,
                    seconds=place.scale.seconds + _LOUD_EXTRA_SECONDS,
                )  # fmt: skip
                output = place.directory / "loud.out"
                with start_client(
                    "benchmarks.raw_redis", asdict(noise), output=output, cores=place.cores.load
                ) as child:
                    child.wait_for("the loud client", lambda: server.ask_number(b"XLEN", b"loud") or None)
                    sample = _steady(place, "redis", server.port)
                    _still_loud(child.process.poll())
                    result = raw_redis.Result(**client_result(child, noise.seconds + _PATIENCE_SECONDS))
                sample = _beside(sample, result.exchanges * LOUD_BATCH / result.seconds)
            server.stop()
        return sample

    return work


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


def _still_loud(exit_code: int | None) -> None:
    if exit_code is not None:
        raise PhaseFailed(f"the loud client had ended (with {exit_code}) before the measurement was over")


def _beside(sample: Sample, loud_records_per_second: float) -> Sample:
    return replace(sample, detail={"loud_records_per_second": loud_records_per_second})
