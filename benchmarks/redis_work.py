"""The same work as in topics_work.py, done by Redis Streams. Every phase starts a server and ends it."""

import csv
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks import payloads
from benchmarks.payloads import VALUE, resp
from benchmarks.processes import client_result, run, start_client
from benchmarks.raw_redis import FIRST_ID, STREAM, Job, Result
from benchmarks.redis_server import Fsync, RedisServer, replay_seconds
from benchmarks.samples import PhaseFailed, Place, Sample, Work
from benchmarks.topics_work import READ_CONNECTIONS

_FILL_BATCH = 1000
_PHASE_SECONDS_MAX = 60.0
# redis-benchmark counts requests, not seconds: short runs find out how many make up the time that is wanted.
_TRIAL_REQUESTS = 500
_TRIAL_SECONDS_MIN = 0.2
_TRIALS_MAX = 6

# Members of one entry beside its data, from its number.
Fields = Callable[[int], tuple[bytes, ...]]


def no_fields(_number: int) -> tuple[bytes, ...]:
    return ()


def own_tag(number: int) -> tuple[bytes, ...]:
    return (b"tag", payloads.tag_of(number).encode())


@dataclass(frozen=True, slots=True)
class BenchmarkLine:
    """What redis-benchmark says of a run."""

    per_second: float
    p50_us: float
    p99_us: float


def parse_benchmark(output: str) -> BenchmarkLine:
    """The last of the CSV lines, by the names in the first."""
    rows = list(csv.DictReader(output.splitlines()))
    if not rows:
        raise ValueError(f"redis-benchmark gave no result: {output[-500:]!r}")
    row = rows[-1]
    return BenchmarkLine(
        per_second=float(row["rps"]),
        p50_us=float(row["p50_latency_ms"]) * 1000,
        p99_us=float(row["p99_latency_ms"]) * 1000,
    )


def writes(
    pipeline: int, connections: int, fsync: Fsync, *, maxlen: int = 0, sustained: bool = False
) -> Work:
    """XADD over and over on each connection, `pipeline` at a time; entries/s and a pipeline's latency."""

    def work(place: Place) -> Sample:
        seconds = place.scale.sustained_seconds if sustained else place.scale.seconds
        with RedisServer(place.directory, place.cores.server, fsync) as server:
            requests, written = max(_TRIAL_REQUESTS, connections * pipeline), 0
            for _ in range(_TRIALS_MAX):
                found = _benchmark(place, server, pipeline, connections, requests, maxlen)
                written += requests
                if requests / found.per_second >= _TRIAL_SECONDS_MIN:
                    break
                requests *= 4
            requests = max(int(found.per_second * seconds), connections * pipeline)
            found = _benchmark(place, server, pipeline, connections, requests, maxlen)
            if not maxlen:
                _check_length(server, written + requests)
            server.stop()
        return Sample(
            per_second=found.per_second,
            p50_us=found.p50_us,
            p99_us=found.p99_us,
            requests=requests // pipeline,
            seconds=requests / found.per_second,
        )

    return work


def reads(fields: Fields = no_fields, *, delete_tenth: bool = False) -> Work:
    """XRANGE of 1000 entries at the cursors that diff gets."""

    def work(place: Place) -> Sample:
        records = place.scale.diff_records
        with RedisServer(place.directory, place.cores.server) as server:
            _fill(server, records, fields)
            if delete_tenth:
                _delete_tenth(server, records)
            job = Job(
                port=server.port, connections=READ_CONNECTIONS, seconds=place.scale.seconds,
                positions=tuple(payloads.diff_positions(records)), count=payloads.DIFF_LIMIT,
            )  # fmt: skip
            result = _raw(place, job)
            server.stop()
        return _sample(result)

    return work


def replay(place: Place) -> Sample:
    """Write in pipelines, SIGKILL, start again: entries/s of the file's load."""
    records = place.scale.replay_records
    with RedisServer(place.directory, place.cores.server) as server:
        _fill(server, records, no_fields)
        server.kill()
    with RedisServer(place.directory, place.cores.server, start_number=1) as server:
        _check_length(server, records)
        seconds = replay_seconds(server.output())
        server.stop()
    return Sample(per_second=records / seconds, seconds=seconds)


def _benchmark(
    place: Place, server: RedisServer, pipeline: int, connections: int, requests: int, maxlen: int
) -> BenchmarkLine:
    output = place.directory / f"redis-benchmark-{requests}.csv"
    bound = ["MAXLEN", "~", str(maxlen)] if maxlen else []
    argv = [
        "redis-benchmark", "-h", "127.0.0.1", "-p", str(server.port), "-c", str(connections),
        "-P", str(pipeline), "-n", str(requests), "--csv",
        "XADD", STREAM.decode(), *bound, "*", "data", VALUE.decode(),
    ]  # fmt: skip
    patience = _PHASE_SECONDS_MAX + 3 * place.scale.sustained_seconds
    return parse_benchmark(run(argv, output=output, cores=place.cores.load, within_seconds=patience))


def _raw(place: Place, job: Job) -> Result:
    output = place.directory / "load.out"
    with start_client("benchmarks.raw_redis", asdict(job), output=output, cores=place.cores.load) as child:
        return Result(**client_result(child, job.seconds + _PHASE_SECONDS_MAX))


def _fill(server: RedisServer, records: int, fields: Fields) -> None:
    for first in range(0, records, _FILL_BATCH):
        numbers = range(first, min(first + _FILL_BATCH, records))
        commands = [
            resp(b"XADD", STREAM, b"%d-0" % (FIRST_ID + number + 1), b"data", VALUE, *fields(number))
            for number in numbers
        ]
        server.feed(commands, lines_per_reply=2)


def _delete_tenth(server: RedisServer, records: int) -> None:
    numbers = range(0, records, 10)
    ids = [b"%d-0" % (FIRST_ID + number + 1) for number in numbers]
    for first in range(0, len(ids), _FILL_BATCH):
        server.ask_number(b"XDEL", STREAM, *ids[first : first + _FILL_BATCH])
    _check_length(server, records - len(ids))


def _check_length(server: RedisServer, expected: int) -> None:
    length = server.ask_number(b"XLEN", STREAM)
    if length < expected:
        raise PhaseFailed(f"{expected} entries were acknowledged, the stream holds {length}")


def _sample(result: Result) -> Sample:
    return Sample(
        per_second=result.exchanges * payloads.DIFF_LIMIT / result.seconds,
        p50_us=result.p50_us,
        p99_us=result.p99_us,
        requests=result.exchanges,
        seconds=result.seconds,
    )
