"""What our server is asked to do in each row. Every phase starts a server and ends it."""

import json
from collections.abc import Mapping
from typing import Any

from benchmarks import payloads, wrk
from benchmarks.payloads import Extras, no_extras
from benchmarks.samples import PhaseFailed, Place, Sample, Work
from benchmarks.topics_server import TopicsServer

READ_CONNECTIONS = 32
_TOPIC = "bench"
_OLD = b'{"match":"old"}'


def writes(
    batch: int,
    connections: int,
    config: Mapping[str, Any],
    *,
    sustained: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Work:
    """POST of `batch` records over and over on each connection; records/s and a request's latency."""
    query = "?return_seqs=false" if batch > 1 else ""

    def work(place: Place) -> Sample:
        seconds = place.scale.sustained_seconds if sustained else place.scale.seconds
        with TopicsServer(place.directory, place.cores.server, settings=settings) as server:
            server.create(_TOPIC, config)
            load = wrk.Load(
                port=server.port, path=f"/v0/topics/{_TOPIC}{query}", bodies=[payloads.write_body(batch)],
                connections=connections, seconds=seconds,
            )  # fmt: skip
            report = load.run(place.directory, "load", place.cores.load)
            acknowledged = (report.requests - report.refused) * batch
            head = server.head(_TOPIC)
            if head < acknowledged:
                raise PhaseFailed(f"{acknowledged} records were acknowledged, the topic's head is {head}")
            server.stop()
        return _sample(report, records_per_request=batch)

    return work


def reads(options: Mapping[str, Any], extras: Extras = no_extras, *, delete_tenth: bool = False) -> Work:
    """Diff of 1000 records at many cursors; records/s as they were returned."""

    def work(place: Place) -> Sample:
        records = place.scale.diff_records
        bodies = payloads.diff_bodies(records, options)
        with TopicsServer(place.directory, place.cores.server) as server:
            server.create(_TOPIC, {})
            server.fill(_TOPIC, records, extras)
            path = f"/v0/topics/{_TOPIC}"
            if delete_tenth:
                deleted = server.ask("POST", f"{path}/delete", _OLD)["deleted"]
                if deleted != records // 10:
                    raise PhaseFailed(f"{deleted} records were deleted, not {records // 10}")
            for body in bodies:
                _check_diff(server.ask("POST", f"{path}/diff", body), body)
            load = wrk.Load(
                port=server.port, path=f"{path}/diff", bodies=bodies,
                connections=READ_CONNECTIONS, seconds=place.scale.seconds,
            )  # fmt: skip
            report = load.run(place.directory, "load", place.cores.load)
            server.stop()
        return _sample(report, records_per_request=payloads.DIFF_LIMIT)

    return work


def replay(place: Place) -> Sample:
    """Write in batches, SIGKILL everything, start again: records/s of the log's replay."""
    records = place.scale.replay_records
    with TopicsServer(place.directory, place.cores.server) as server:
        server.create(_TOPIC, {})
        server.fill(_TOPIC, records)
        server.kill()
    with TopicsServer(place.directory, place.cores.server, start_number=1) as server:
        told = [event for event in server.events("log.replayed") if event["records"]]
        if [event["records"] for event in told] != [records]:
            raise PhaseFailed(f"{records} records were written, the server replayed {told}")
        server.stop()
    seconds = float(told[0]["seconds"])
    if seconds <= 0:
        raise PhaseFailed(f"{records} records are too few: their replay took no measurable time")
    return Sample(per_second=records / seconds, seconds=seconds, detail={"bytes": int(told[0]["bytes"])})


def _check_diff(answer: Any, body: bytes) -> None:
    if len(answer["records"]) != payloads.DIFF_LIMIT or answer["tombstone"] is not None:
        raise PhaseFailed(f"diff {json.loads(body)} returned {len(answer['records'])} records")


def _sample(report: wrk.Report, *, records_per_request: int) -> Sample:
    return Sample(
        per_second=report.answered_well_per_second * records_per_request,
        p50_us=report.p50_us,
        p99_us=report.p99_us,
        requests=report.requests,
        failures=report.refused + report.broken,
        seconds=report.seconds,
    )
