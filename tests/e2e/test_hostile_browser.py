"""Pages of other sites, through every door: what a browser sends for them changes and reads nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.hostile import BOTH_DOORS

if TYPE_CHECKING:
    from tests.e2e.server import Answer, Server, Topic

CHANGING = [
    ("PUT", "", b"{}"),
    ("POST", "", b'{"records":[{"data":"from a page"}]}'),
    ("POST", "/delete", b'{"before_seq":9}'),
    ("DELETE", "", b""),
]
FOREIGN = {
    "other-site": ("http://elsewhere.example", None),
    "null": ("null", None),
    "empty": ("", None),
    "nonsense": ("no url", None),
    "broken-url": ("http://[::1", None),
    "rebound-name": ("http://elsewhere.example:{port}", "elsewhere.example:{port}"),
    "rebound-name-without-port": ("http://elsewhere.example", "elsewhere.example"),
    "other-port": ("http://127.0.0.1:1", None),
    "no-port": ("http://127.0.0.1", None),
    "other-own-name": ("http://localhost:{port}", None),
    "looks-like-ours": ("http://127.0.0.1.elsewhere.example:{port}", None),
    "ours-as-user": ("http://127.0.0.1:{port}@elsewhere.example", None),
    "two-origins": ("http://127.0.0.1:{port}, http://elsewhere.example", None),
    "extension": ("chrome-extension://abcdef", None),
    "file": ("file://", None),
}


def ask(topic: Topic, method: str, rest: str, body: bytes, origin: str, host: str | None) -> Answer:
    port = topic.server.port
    host = (host or "127.0.0.1:{port}").format(port=port)
    head = (
        f"{method} {topic.path}{rest} HTTP/1.1\nHost: {host}\nOrigin: {origin.format(port=port)}\n"
        f"Content-Type: application/json\nContent-Length: {len(body)}"
    )
    return topic.server.raw(head, body)


@BOTH_DOORS
@pytest.mark.parametrize(("origin", "host"), FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize(("method", "rest", "body"), CHANGING)
def test_a_foreign_page_is_403_and_changes_nothing(
    topic: Topic, method: str, rest: str, body: bytes, origin: str, host: str | None
) -> None:
    topic.write("kept")
    before = topic.state()
    ask(topic, method, rest, body, origin, host).failed(403, "forbidden")
    after = topic.state()
    assert (after["head_seq"], after["count"], after["config"]) == (
        before["head_seq"],
        before["count"],
        before["config"],
    )


@BOTH_DOORS
def test_a_foreign_page_is_refused_before_its_body_is_looked_at(topic: Topic) -> None:
    ask(topic, "POST", "", b"{", FOREIGN["other-site"][0], None).failed(403, "forbidden")
    ask(topic, "POST", "", b"", FOREIGN["other-site"][0], None).failed(403, "forbidden")
    topic.server.get(topic.path).failed(404, "topic_not_found")


@BOTH_DOORS
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST"])
def test_a_page_of_this_server_may_do_everything(topic: Topic, name: str) -> None:
    origin, host = f"http://{name}:{{port}}", f"{name}:{{port}}"
    statuses = [ask(topic, *request, origin, host).status for request in CHANGING]
    assert statuses == [201, 200, 200, 200]


@BOTH_DOORS
def test_a_program_sends_no_origin_and_is_not_concerned(topic: Topic) -> None:
    topic.put()
    topic.write(1)
    topic.delete_records(before_seq=2)
    topic.drop()


@BOTH_DOORS
@pytest.mark.parametrize("path", ["", "/diff", "/delete"])
def test_a_preflight_grants_nothing(topic: Topic, path: str) -> None:
    topic.put()
    answer = topic.server.request(
        "OPTIONS",
        topic.path + path,
        headers={
            "Origin": "http://elsewhere.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type",
        },
    )
    answer.failed(405, "method_not_allowed")
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@BOTH_DOORS
def test_what_a_foreign_page_may_ask_it_may_not_read(topic: Topic) -> None:
    """Without CORS headers a browser keeps the answer from the page."""
    topic.write("secret")
    for method, path, body in (("GET", topic.path, b""), ("POST", f"{topic.path}/diff", b"{}")):
        answer = topic.server.request(
            method,
            path,
            raw=body,
            headers={"Origin": "http://elsewhere.example", "Content-Type": "application/json"},
        )
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@BOTH_DOORS
@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_a_form_of_any_page_is_415_even_without_an_origin(topic: Topic, media_type: str) -> None:
    """What a browser sends without asking first, should it ever leave Origin out."""
    topic.server.post(
        topic.path, raw=b'{"records":[{"data":1}]}', headers={"Content-Type": media_type}
    ).failed(415, "unsupported_media_type")
    topic.server.get(topic.path).failed(404, "topic_not_found")


@pytest.mark.parametrize("server", ["h2c"], indirect=True, scope="session")
def test_over_http2_the_same_rules_hold(server: Server, topic: Topic) -> None:
    own = f"http://127.0.0.1:{server.port}"
    json_type = {"Content-Type": "application/json"}
    server.put(topic.path, raw=b"{}", headers={**json_type, "Origin": own}).ok(201)
    for origin in ("http://elsewhere.example", "null", "http://127.0.0.1:1"):
        for method, rest, body in CHANGING:
            answer = server.request(
                method, topic.path + rest, raw=body, headers={**json_type, "Origin": origin}
            )
            answer.failed(403, "forbidden")
    assert topic.state()["head_seq"] == 0
