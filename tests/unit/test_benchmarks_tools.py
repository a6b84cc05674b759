"""What the benchmark sends to its tools and how it reads what they say."""

import json
from pathlib import Path

import pytest

from benchmarks import machine, paced, payloads, redis_work, topics_server, wrk
from benchmarks.redis_server import replay_seconds

WRK_OUTPUT = """\
Running 1s test @ http://127.0.0.1:35211
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     3.61ms    1.92ms  21.30ms   80.55%
    Req/Sec     8.93k     1.02k   10.12k    70.00%
  8934 requests in 1.00s, 2.10MB read
  Non-2xx or 3xx responses: 34
Requests/sec:   8926.71
Transfer/sec:      2.10MB

BENCH {"requests":8934,"duration_us":1000817,"bytes":2201024,"p50_us":3422,"p99_us":9120,\
"connect":1,"read":2,"write":3,"timeout":4,"status":34}
"""


def test_a_wrk_report_counts_refused_and_broken_requests_apart() -> None:
    report = wrk.parse(WRK_OUTPUT)
    assert (report.requests, report.p50_us, report.p99_us) == (8934, 3422, 9120)
    assert (report.refused, report.broken) == (34, 10)
    assert report.answered_well_per_second == pytest.approx(8900 / 1.000817)


@pytest.mark.parametrize(
    "output",
    [
        "unable to connect to 127.0.0.1:1 Connection refused",
        WRK_OUTPUT + WRK_OUTPUT,
        WRK_OUTPUT.replace('"requests":8934', '"requests":0'),
    ],
)
def test_wrk_output_without_exactly_one_report_of_answers_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match="wrk"):
        wrk.parse(output)


def test_one_body_is_formatted_once_and_several_take_turns() -> None:
    one = wrk.script("/v0/topics/a?return_seqs=false", [Path("body.json")])
    assert 'wrk.path = "/v0/topics/a?return_seqs=false"' in one
    assert 'wrk.body = content("body.json")' in one
    assert "function request()" not in one
    several = wrk.script("/v0/topics/a/diff", [Path("1.json"), Path("2.json")])
    assert 'local names = {"1.json", "2.json"}' in several
    assert "function request()" in several
    for script in (one, several):
        assert 'wrk.method = "POST"' in script
        assert wrk.MARK in script


def test_a_record_is_200_bytes_for_both_parties() -> None:
    body = json.loads(payloads.write_body(3, first=9, extras=payloads.every_tenth_tagged))
    assert [record.get("tag") for record in body["records"]] == [None, "old", None]
    assert all(len(json.dumps(record["data"], separators=(",", ":"))) == 200 for record in body["records"])
    assert len(payloads.VALUE) == 200


def test_diff_asks_at_the_same_positions_every_time_with_room_behind_each() -> None:
    bodies = [json.loads(body) for body in payloads.diff_bodies(10_000, {"include_tags": True})]
    positions = [body["from_seq"] for body in bodies]
    assert positions == payloads.diff_positions(10_000)
    assert len(set(positions)) == len(positions) > 50
    assert max(positions) + 2 * payloads.DIFF_LIMIT < 10_000
    assert all(body["include_tags"] is True and body["limit"] == 1000 for body in bodies)
    with pytest.raises(ValueError, match="too short"):
        payloads.diff_positions(2000)


def test_redis_commands_are_written_with_their_lengths() -> None:
    assert payloads.resp(b"XLEN", b"bench") == b"*2\r\n$4\r\nXLEN\r\n$5\r\nbench\r\n"


def test_redis_benchmark_is_read_by_column_name() -> None:
    output = (
        '"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms",'
        '"max_latency_ms"\n"XADD bench * d x","28604.12","0.920","0.056","0.271","5.671","7.103","16.183"\n'
    )
    found = redis_work.parse_benchmark(output)
    assert (found.per_second, found.p50_us, found.p99_us) == (28604.12, 271.0, 7103.0)
    with pytest.raises(ValueError, match="no result"):
        redis_work.parse_benchmark("Could not connect\n")


def test_the_replay_of_redis_is_read_from_its_log() -> None:
    incremental = "1:M 01 Jan 2025 * DB loaded from incr file appendonly.aof.1.incr.aof: 0.310 seconds\n"
    total = "1:M 01 Jan 2025 * DB loaded from append only file: 0.312 seconds\n"
    assert replay_seconds(incremental + total) == 0.312
    with pytest.raises(ValueError, match="0 times"):
        replay_seconds(incremental)


def test_events_are_found_between_lines_that_are_not_json() -> None:
    output = 'Warning: x\n{"event": "other"}\n{"event": "log.replayed", "records": 5}\n'
    assert topics_server.log_events(output, "log.replayed") == [{"event": "log.replayed", "records": 5}]


def test_the_steady_client_knows_when_an_answer_is_complete_and_good() -> None:
    answer = b"HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: 4\r\nServer: y\r\n\r\nbody"
    for cut in range(len(answer)):
        assert paced.http_reply(answer[:cut]) is None
    assert paced.http_reply(answer) is True
    assert paced.http_reply(answer.replace(b"200 OK", b"429 Too Many Requests")) is False
    with pytest.raises(ValueError, match="length"):
        paced.http_reply(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    reply = b"$15\r\n1700000000000-0\r\n"
    for cut in range(len(reply)):
        assert paced.redis_reply(reply[:cut]) is None
    assert paced.redis_reply(reply) is True
    assert paced.redis_reply(b"-OOM command not allowed\r\n") is False


def test_the_file_system_is_that_of_the_nearest_mount() -> None:
    mounts = (
        "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/big\\040disk xfs rw 0 0\n"
        "/dev/c /data ext4 rw 0 0\n/dev/d /data btrfs rw 0 0\n"
    )
    kinds = {
        name: machine.filesystem(Path(name), mounts)
        for name in ("/", "/tmp/x", "/tmp/big disk/x", "/tmpfile", "/data/x")
    }
    assert list(kinds.values()) == ["ext4", "tmpfs", "xfs", "ext4", "btrfs"]
    assert machine.cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\n") == "AMD EPYC"
