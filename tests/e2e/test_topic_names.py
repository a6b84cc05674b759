"""Which names are topics (section 1.1), and that no spelling of a name reaches anything else."""

from __future__ import annotations

import pytest

from tests.e2e.server import Server, Topic


@pytest.mark.parametrize(
    "good", ["{n}", "{n}.b_c:d-e", "{n}..", "{n}--", "{n}::x", "0{n}", "Z{n}", "{n}_", "{n}.tar.gz"]
)
def test_a_good_name_is_taken_as_it_is(server: Server, name: str, good: str) -> None:
    spelled = good.format(n=name)
    assert server.put(f"/v0/topics/{spelled}", {}).ok(201)["topic"] == spelled
    assert server.get(f"/v0/topics/{spelled}").ok()["topic"] == spelled


def test_names_of_one_and_of_255_characters_are_good_and_256_are_too_many(server: Server) -> None:
    assert server.put("/v0/topics/q", {}).status in (200, 201)
    server.put(f"/v0/topics/{'n' * 255}", {}).ok(201)
    server.put(f"/v0/topics/{'n' * 256}", {}).failed(400, "invalid_request", "topic")


def test_names_are_case_sensitive(server: Server, name: str) -> None:
    server.put(f"/v0/topics/{name}-a", {}).ok(201)
    server.put(f"/v0/topics/{name}-A", {}).ok(201)
    assert Topic(server, f"{name}-A").write(1)["head_seq"] == 1
    assert Topic(server, f"{name}-a").state()["head_seq"] == 0


def test_percent_escapes_are_decoded_before_the_name_is_looked_at(server: Server, name: str) -> None:
    escaped = "".join(f"%{ord(char):02x}" for char in f"{name}:x")
    head = f"PUT /v0/topics/{escaped} HTTP/1.1\nContent-Length: 0"
    assert server.raw(head).ok(201)["topic"] == f"{name}:x"
    assert server.raw(head.replace("%3a", ":")).ok(200)["created"] is False
    assert server.get(f"/v0/topics/{name}:x").ok()["topic"] == f"{name}:x"


BAD_NAMES = [
    *(
        "-a",
        ".a",
        "_a",
        ":a",
        "..",
        ".",
        "~a",
        "a~",
        "a@b",
        "a+b",
        "a*",
        "a,b",
        "a;b",
        "a=b",
        "a!",
        "a'b",
        "(a)",
    ),
    *(
        "%20",
        "a%20b",
        "a%00",
        "%00a",
        "a%0A",
        "a%0D",
        "a%0D%0Ab",
        "a%09",
        "a%7f",
        "a%22",
        "a%5C",
        "a%3Eb",
        "a%3Cb",
    ),
    *(
        "%C3%A4",
        "a%C3%A4",
        "a%E2%82%AC",
        "a%ff",
        "%ff",
        "a%c3",
        "a%80b",
        "a%25",
        "a%2520",
        "a%7Bb%7D",
        "a%7Cb",
    ),
    "a" * 256,
    "a" * 5000,
]
ROUTES_OF_A_TOPIC = [
    ("PUT", "", b"{}"),
    ("GET", "", b""),
    ("DELETE", "", b""),
    ("POST", "", b'{"records":[{"data":1}]}'),
    ("POST", "/diff", b"{}"),
    ("POST", "/delete", b'{"before_seq":1}'),
]


@pytest.mark.parametrize("bad", BAD_NAMES, ids=lambda bad: bad[:20])
def test_a_bad_name_is_400_on_every_route(server: Server, bad: str) -> None:
    for method, rest, body in ROUTES_OF_A_TOPIC:
        head = (
            f"{method} /v0/topics/{bad}{rest} HTTP/1.1\n"
            f"Content-Type: application/json\nContent-Length: {len(body)}"
        )
        server.raw(head, body).failed(400, "invalid_request")


@pytest.mark.parametrize(
    "path",
    [
        *(
            "a%2Fb",
            "%2e%2e%2fetc",
            "..%2f..%2fetc%2fpasswd",
            "%2e%2e%2f%2e%2e%2f",
            "a%zz",
            "a%",
            "a%2",
            "%",
            "%%",
        ),
        *("../../etc/passwd", "../health", "%2e%2e", "a/../../etc"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_an_escaped_slash_or_a_broken_escape_is_refused_and_reaches_nothing(
    server: Server, method: str, path: str
) -> None:
    answer = server.raw(f"{method} /v0/topics/{path} HTTP/1.1\nContent-Length: 0")
    assert (answer.status, answer.code) in {(400, "invalid_request"), (404, "not_found")}
