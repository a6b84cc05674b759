"""HTTP as it is on the wire: chunks, expectations, broken framing, and pages of other sites."""

from __future__ import annotations

import pytest

from tests.e2e.server import BODIES, Server, Topic, request_bytes


def test_a_chunked_body_is_read(topic: Topic) -> None:
    body = b'{"records":[{"data":"chunked"}]}'
    chunks = (
        b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:5], body[5:6], body[6:]))
        + b"0\r\n\r\n"
    )
    head = f"POST {topic.path} HTTP/1.1\nContent-Type: application/json\nTransfer-Encoding: chunked"
    assert topic.server.raw(head, chunks).ok(201)["count"] == 1


def test_an_empty_chunked_body_is_an_empty_body(topic: Topic) -> None:
    topic.server.raw(f"PUT {topic.path} HTTP/1.1\nTransfer-Encoding: chunked", b"0\r\n\r\n").ok(201)


def test_a_client_that_asks_first_is_told_to_continue(topic: Topic) -> None:
    body = b'{"records":[{"data":1}]}'
    head = (
        f"POST {topic.path} HTTP/1.1\nContent-Type: application/json\n"
        f"Content-Length: {len(body)}\nExpect: 100-continue"
    )
    with topic.server.connect() as wire:
        wire.send(request_bytes(head))
        assert not wire.is_silent_for(5), "no answer to Expect: 100-continue"
        wire.send(body)
        wire.answer().ok(201)


def test_a_connection_stays_usable_after_errors(topic: Topic) -> None:
    with topic.server.connect() as wire:
        for head, body, status in [
            (f"GET {topic.path} HTTP/1.1", b"", 404),
            ("GET /nowhere HTTP/1.1", b"", 404),
            (f"PATCH {topic.path} HTTP/1.1\nContent-Length: 5", b"hello", 405),
            (f"PUT {topic.path} HTTP/1.1\nContent-Length: 2\nContent-Type: text/plain", b"{}", 415),
            (f"PUT {topic.path} HTTP/1.1\nContent-Length: 2\nContent-Type: application/json", b"{x", 400),
            (f"PUT {topic.path} HTTP/1.1\nContent-Length: 2\nContent-Type: application/json", b"{}", 201),
            (f"GET {topic.path} HTTP/1.1", b"", 200),
        ]:
            wire.send(request_bytes(head, body))
            assert wire.answer().status == status, head


@pytest.mark.parametrize(
    "request_text",
    [
        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 24\r\n"
        'Transfer-Encoding: chunked\r\n\r\n18\r\n{{"records":[{{"data":1}}]}}\r\n0\r\n\r\n',
        "PUT {path} HTTP/1.1\r\nHost: a\r\nX-Folded: one,\r\n x\r\nContent-Length: 0\r\n\r\n",
        "PUT {path} HTTP/1.1\nHost: a\nContent-Length: 0\n\n",
        "PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
        "PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        "PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        "PUT {path} HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        "PUT {path} HTTP/1.1\r\nHost: a\r\nbroken header\r\n\r\n",
        "complete nonsense\r\n\r\n",
    ],
    ids=[
        "cl-and-te",
        "obs-fold",
        "lf-only",
        "two-lengths",
        "negative-length",
        "bad-length",
        "no-host",
        "no-colon",
        "nonsense",
    ],
)
def test_ambiguous_or_broken_framing_is_400_and_the_connection_ends(topic: Topic, request_text: str) -> None:
    with topic.server.connect() as wire:
        wire.send(request_text.format(path=topic.path).encode())
        assert wire.answer().status == 400
        assert wire.is_closed_by_server()
    topic.server.get(topic.path).failed(404, "topic_not_found")


def test_the_server_does_not_advertise_itself_or_open_itself_to_browsers(server: Server) -> None:
    answer = server.get("/v0/health", headers={"Origin": "http://elsewhere.example"})
    assert "server" not in answer.headers
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(("method", "rest", "body"), [*BODIES[:2], BODIES[3], ("DELETE", "", b"")])
def test_a_page_of_another_site_cannot_change_anything(
    topic: Topic, method: str, rest: str, body: bytes
) -> None:
    topic.write("kept")
    for origin, host in [
        ("http://elsewhere.example", "127.0.0.1"),
        ("http://elsewhere.example", "elsewhere.example"),
    ]:
        head = (
            f"{method} {topic.path}{rest} HTTP/1.1\nHost: {host}\nOrigin: {origin}\n"
            f"Content-Type: application/json\nContent-Length: {len(body)}"
        )
        topic.server.raw(head, body).failed(403, "forbidden")
    assert topic.seqs() == [1]


def test_without_an_origin_any_host_name_passes(topic: Topic) -> None:
    topic.server.raw(f"PUT {topic.path} HTTP/1.1\nHost: some.proxy.example\nContent-Length: 0").ok(201)
