"""The course of a connection through both HTTP/1.1 doors: pipelines, half-closes, expectations, upgrades."""

from __future__ import annotations

import socket
import threading

import pytest

from tests.e2e.hostile import (
    BOTH_DOORS,
    WRITE,
    answers,
    chunked_post,
    get,
    poll,
    post,
    refused_and_ended,
    rest_of,
    send_apart,
)
from tests.e2e.server import Server, Topic, eventually

pytestmark = BOTH_DOORS

GOOD_BODY = b"%x\r\n%s\r\n0\r\n\r\n" % (len(WRITE), WRITE)


# -- many at once -----------------------------------------------------------------------------------------


def test_errors_in_the_middle_of_a_pipeline_keep_the_order(topic: Topic) -> None:
    requests = [
        (post(topic.path), 201),
        (get("/nowhere"), 404),
        (post(topic.path, b"{"), 400),
        (post(topic.path).replace(b"application/json", b"text/plain"), 415),
        (post("/v0/topics/-bad"), 400),
        (b"PATCH" + post(topic.path)[4:], 405),
        (chunked_post(topic.path, GOOD_BODY), 200),
        (get(topic.path), 200),
        (post(f"{topic.path}-absent/diff", b"{}"), 404),
        (post(topic.path), 200),
    ]
    with topic.server.connect() as wire:
        wire.send(b"".join(data for data, _ in requests))
        got = [answer.status for answer in answers(wire, len(requests))]
    assert got == [status for _, status in requests]
    assert topic.seqs() == [1, 2, 3]


@pytest.mark.parametrize("apart_s", [0, 0.2], ids=["one-packet", "apart"])
def test_a_broken_request_behind_good_ones_is_refused_after_their_whole_answers(
    topic: Topic, apart_s: float
) -> None:
    topic.put()
    good, bad = poll(topic.path, 50) + post(topic.path) * 3 + get(topic.path), get("/v0/health", "X : a")
    with topic.server.connect() as wire:
        send_apart(
            wire,
            [good, bad + post(topic.path)] if apart_s else [good + bad + post(topic.path)],
            apart_s=apart_s,
        )
        got = answers(wire, 6)
        assert wire.is_closed_by_server()
    assert [answer.status for answer in got] == [200] * 5 + [400]
    assert [answer.json["seqs"] for answer in got[1:4]] == [[1], [2], [3]]
    assert got[4].ok()["head_seq"] == 3
    assert topic.seqs() == [1, 2, 3]


def test_a_refusal_does_not_pose_as_the_answer_of_a_request_under_way(topic: Topic) -> None:
    topic.put()
    with topic.server.connect() as wire:
        send_apart(wire, [poll(topic.path, 1000), get("/v0/health", "X : a")], apart_s=0.2)
        ending = rest_of(wire)
    assert ending.closed
    assert ending.statuses in ([200, 400], [200], []), ending


def test_nothing_behind_connection_close_is_executed(topic: Topic) -> None:
    topic.put()
    with topic.server.connect() as wire:
        send_apart(wire, [get(topic.path, "Connection: close"), post(topic.path)])
        ending = rest_of(wire)
    assert ending.closed
    assert ending.statuses == [200]
    assert topic.seqs() == []


# -- half-closed ------------------------------------------------------------------------------------------


def test_a_client_that_sends_no_more_still_gets_its_answer(topic: Topic) -> None:
    with topic.server.connect() as wire:
        wire.send(post(topic.path))
        wire.sock.shutdown(socket.SHUT_WR)
        wire.answer("POST").ok(201)
        assert wire.is_closed_by_server()


def test_a_client_that_sends_no_more_still_gets_a_short_wait(topic: Topic) -> None:
    topic.put()
    with topic.server.connect() as wire:
        wire.send(poll(topic.path, 300))
        wire.sock.shutdown(socket.SHUT_WR)
        assert wire.answer("POST").ok()["records"] == []


def test_a_client_that_sends_no_more_still_gets_every_answer_of_its_pipeline(topic: Topic) -> None:
    topic.put()
    with topic.server.connect() as wire:
        wire.send(poll(topic.path, 100) * 3 + post(topic.path))
        wire.sock.shutdown(socket.SHUT_WR)
        assert rest_of(wire).statuses == [200] * 4
    assert topic.seqs() == [1]


def test_a_client_that_leaves_inside_a_head_or_a_body_leaves_nothing_behind(topic: Topic) -> None:
    data = post(topic.path)
    for length in (1, 10, len(data) - len(WRITE), len(data) - 1):
        with topic.server.connect() as wire:
            wire.send(data[:length])
    topic.server.get(topic.path).failed(404, "topic_not_found")


# -- asking first -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (
            post("/v0/topics/a", b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 99999999999"),
            413,
        ),
        (post("/nowhere", b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 5"), 404),
        (
            post("/v0/topics/a", b"", "Expect: 100-continue", "Origin: http://elsewhere.example").replace(
                b"Length: 0", b"Length: 5"
            ),
            403,
        ),
    ],
    ids=["too-large", "no-route", "foreign-page"],
)
def test_a_refused_body_gets_its_final_status_without_being_sent(
    server: Server, data: bytes, status: int
) -> None:
    with server.connect() as wire:
        wire.send(data)
        ending = rest_of(wire, within_s=4)
    # Hypercorn says 100 before it asks anybody; the lane knows better.
    asked = [100] if "TOPICS_FAST_LANE" in server.settings else []
    assert ending.statuses in ([*asked, status], [status])
    assert ending.closed


def test_continue_is_said_once_however_slowly_the_body_comes(topic: Topic) -> None:
    with topic.server.connect() as wire:
        send_apart(
            wire,
            [
                chunked_post(topic.path, b"", "Expect: 100-continue"),
                *(bytes([byte]) for byte in GOOD_BODY),
            ],
            apart_s=0.005,
        )
        assert rest_of(wire, within_s=1).statuses == [100, 201]


# -- other protocols --------------------------------------------------------------------------------------

H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
WEBSOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


def test_a_websocket_where_there_is_none_is_refused(topic: Topic) -> None:
    for path in ("/v0/health", topic.path, "/nowhere"):
        with topic.server.connect() as wire:
            wire.send(get(path, *WEBSOCKET))
            ending = rest_of(wire, within_s=1)
        assert ending.statuses[0] in (200, 400, 404), path
        assert 101 not in ending.statuses


@pytest.mark.parametrize("apart", [False, True], ids=["whole", "body-behind-head"])
def test_a_post_that_offers_h2c_is_applied_once_and_answered(topic: Topic, apart: bool) -> None:
    topic.put()
    data = post(topic.path, WRITE, *H2C)
    with topic.server.connect() as wire:
        send_apart(wire, [data[: -len(WRITE)], WRITE] if apart else [data], apart_s=0.1)
        ending = rest_of(wire, within_s=1)
    assert ending.statuses[0] in (200, 101), ending
    eventually(lambda: topic.seqs() == [1])


def test_an_upgrade_in_two_packets_behind_a_request_reaches_nothing_twice(topic: Topic) -> None:
    """The rest of the second head is itself a request, should somebody take it for one."""
    topic.put()
    upgrade = get("/v0/health", f"X: POST {topic.path} HTTP/1.1", *WEBSOCKET)
    at = upgrade.index(b"POST")
    with topic.server.connect() as wire:
        send_apart(wire, [poll(topic.path, 400) + post(topic.path), upgrade[:at]], apart_s=0.1)
        # The answers of both are there before the rest is sent.
        assert [answer.status for answer in answers(wire, 2)] == [200, 200]
        send_apart(wire, [upgrade[at:]])
        ending = rest_of(wire, within_s=1)
    assert len(ending.statuses) <= 1
    assert topic.seqs() == [1]


def test_connect_and_trace_open_nothing(server: Server) -> None:
    for request in (
        b"CONNECT elsewhere.example:443 HTTP/1.1",
        b"TRACE /v0/health HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
    ):
        with server.connect() as wire:
            wire.send(request + b"\r\nHost: 127.0.0.1\r\nX-Secret: s\r\n\r\n")
            answer = wire.answer()
        assert answer.status in (400, 404, 405, 501), request
        assert b"X-Secret" not in answer.body


def test_readers_of_both_kinds_may_wait_while_others_are_refused(topic: Topic) -> None:
    """Refusals on other connections do not disturb a long-poll."""
    topic.put()
    woken: list[int] = []

    def wait() -> None:
        with topic.server.connect() as wire:
            wire.send(poll(topic.path, 20_000))
            woken.extend(record["$seq"] for record in wire.answer("POST").ok()["records"])

    reader = threading.Thread(target=wait)
    reader.start()
    for _ in range(20):
        refused_and_ended(topic.server, [get("/v0/health", "X : a")])
    topic.write("now")
    reader.join(10)
    assert woken == [1]
