"""API keys on a whole server, through both doors: who gets in, what they learn, and where keys are not."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.e2e.server import PROJECT_ROOT, Server, eventually, request_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.e2e.server import Answer

# Not constants of a module that a server could import, and nothing that could stand in memory by chance.
OPS, READER, WRITER, TENANT = (f"{name}-{secrets.token_hex(16)}" for name in ("ops", "read", "write", "ten"))
KEYS = f"{OPS},{READER}:read,{WRITER}:w,{TENANT}:r+w+d+a:tenant42:|shared."
WRONG = f"wrong-{secrets.token_hex(16)}"
BODY = {"records": [{"data": 1}]}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module", params=["1", "0"], ids=["lane", "quart"])
def locked(request: pytest.FixtureRequest, start_server: Callable[[Mapping[str, str]], Server]) -> Server:
    return start_server({"TOPICS_API_KEYS": KEYS, "TOPICS_FAST_LANE": request.param})


@pytest.fixture
def own_locked(tmp_path: Path) -> Iterator[Server]:
    """For tests that look at the processes before any token has reached them, or kill one."""
    server = Server(tmp_path, {"TOPICS_API_KEYS": KEYS})
    server.start()
    yield server
    server.end()


def processes_of(server: Server) -> dict[str, int]:
    """The pid of each process of a server, by what runs in it."""
    assert server.process is not None
    top = server.process.pid
    found = {"supervisor": top}
    for child in Path(f"/proc/{top}/task/{top}/children").read_text().split():
        command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        module = command[command.index(b"-m") + 1].decode()
        found[f"{module} {child}"] = int(child)
    return found


# The lane says "close" when it answers before a body has arrived, whatever the answer.
NOT_COMPARED = frozenset({"date", "content-length", "connection"})


def comparable(answer: Answer) -> tuple[int, dict[str, str], Any]:
    body = answer.json
    del body["performance"]
    return answer.status, {k: v for k, v in answer.headers.items() if k not in NOT_COMPARED}, body


def test_each_key_passes_where_its_scopes_say(locked: Server, name: str) -> None:
    path = f"/v0/topics/{name}"
    table = [
        ("PUT", path, {}, {OPS: 201, READER: 403, WRITER: 403}),
        ("POST", path, BODY, {OPS: 200, READER: 403, WRITER: 200}),
        ("GET", path, None, {OPS: 200, READER: 200, WRITER: 403}),
        ("HEAD", path, None, {OPS: 200, READER: 200, WRITER: 403}),
        ("GET", "/v0/topics", None, {OPS: 200, READER: 200, WRITER: 403}),
        ("POST", f"{path}/diff", {}, {OPS: 200, READER: 200, WRITER: 403}),
        ("POST", f"{path}/delete", {"before_seq": 1}, {READER: 403, WRITER: 403, OPS: 200}),
        ("DELETE", path, None, {READER: 403, WRITER: 403, OPS: 200}),
    ]
    for method, target, body, expected in table:
        for token, status in expected.items():
            answer = locked.request(method, target, body, headers=bearer(token))
            assert answer.status == status, (method, target, token[:5], answer.body)
        for headers in ({}, bearer(WRONG), {"Authorization": f"Basic {OPS}"}):
            answer = locked.request(method, target, body, headers=headers)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"


def test_a_token_that_is_not_ascii_is_401(locked: Server) -> None:
    for token in (f"{OPS}\xff", "\xe9", f"\xa0{OPS}"):
        locked.raw(f"GET /v0/topics HTTP/1.1\nAuthorization: Bearer {token}").failed(401, "unauthorized")
    locked.raw(f"GET /v0/topics HTTP/1.1\naUTHORIZATION: bEARER {OPS}").ok()


def test_the_whole_order_of_checks_holds_on_a_connection(locked: Server) -> None:
    with locked.connect() as wire:
        for headers, status in (("", 401), (f"\nAuthorization: Bearer {READER}", 403)):
            wire.send(request_bytes(f"POST /v0/topics/x HTTP/1.1{headers}\nContent-Length: 3", b"{}x"))
            assert wire.answer("POST").status == status
        wire.send(request_bytes("GET /v0/health HTTP/1.1"))
        assert wire.answer().status == 200, "a refusal does not break the connection"


def test_keys_are_asked_for_over_http2_too(locked: Server) -> None:
    with httpx.Client(
        base_url=f"http://127.0.0.1:{locked.port}", http1=False, http2=True, trust_env=False
    ) as http:
        refused = http.get("/v0/topics")
        assert (refused.http_version, refused.status_code) == ("HTTP/2", 401)
        assert refused.headers["www-authenticate"] == "Bearer"
        assert http.get("/v0/topics", headers=bearer(OPS)).status_code == 200
        assert http.post("/v0/topics/x", json=BODY, headers=bearer(READER)).status_code == 403
        assert http.get("/v0/topics/jobs", headers=bearer(TENANT)).status_code == 403


def test_probes_are_open_and_tell_no_name(locked: Server) -> None:
    for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
        for headers in ({}, bearer(WRONG)):
            assert set(locked.get(path, headers=headers).ok()) <= {
                "status",
                "version",
                "uptime_ms",
                "wal_replay_complete",
                "topics",
                "performance",
            }


def test_a_foreign_name_answers_alike_whether_it_exists_or_not(locked: Server, name: str) -> None:
    existing, absent = f"there-{name}", f"gone-{name}"
    locked.post(f"/v0/topics/{existing}", BODY, headers=bearer(OPS)).ok(201)
    for method, tail, body in (
        ("GET", "", None),
        ("PUT", "", {}),
        ("POST", "", BODY),
        ("POST", "/diff", {}),
        ("POST", "/delete", {"before_seq": 9}),
        ("DELETE", "", None),
        ("PATCH", "", None),
    ):
        answers = []
        for topic in (existing, absent):
            answer = locked.request(method, f"/v0/topics/{topic}{tail}", body, headers=bearer(TENANT))
            answer.failed(403, "forbidden")
            status, headers, shown = comparable(answer)
            answers.append((status, headers, json.dumps(shown).replace(topic, "NAME")))
        assert answers[0] == answers[1]
    state = locked.get(f"/v0/topics/{existing}", headers=bearer(OPS)).ok()
    assert (state["count"], state["head_seq"]) == (1, 1)
    locked.get(f"/v0/topics/{absent}", headers=bearer(OPS)).failed(404, "topic_not_found")


@pytest.mark.parametrize("page_size", [1, 3, 100])
def test_a_limited_key_lists_its_own_topics_page_by_page(locked: Server, name: str, page_size: int) -> None:
    own = [f"{prefix}{name}-{n}" for prefix in ("shared.", "tenant42:") for n in range(4)]
    foreign = [f"{prefix}{name}" for prefix in ("a-", "shared-", "tenant4-", "tenant43:", "zz-")]
    for topic in own + foreign:
        locked.put(f"/v0/topics/{topic}", {}, headers=bearer(OPS)).ok(201)
    seen: list[str] = []
    params = {"page_size": str(page_size)}
    for _ in range(200):
        page = locked.get("/v0/topics", params=params, headers=bearer(TENANT)).ok()
        seen += [topic["topic"] for topic in page["topics"]]
        if "next_cursor" not in page:
            break
        assert len(page["topics"]) == page_size
        after = json.loads(base64.urlsafe_b64decode(page["next_cursor"]))["after"]
        assert after == seen[-1]
        params["cursor"] = page["next_cursor"]
    assert seen == sorted(seen)
    assert all(topic.startswith(("shared.", "tenant42:")) for topic in seen)
    assert [topic for topic in seen if name in topic] == sorted(own)
    everything = locked.get("/v0/topics", params={"page_size": "1000"}, headers=bearer(OPS)).ok()["topics"]
    assert {topic["topic"] for topic in everything} >= {*own, *foreign}


def test_dead_letters_stay_within_the_prefixes(locked: Server, name: str) -> None:
    path = f"/v0/topics/tenant42:{name}"
    for dead_letter, status in ((f"jobs-{name}", 403), (f"tenant42:{name}.dlq", 201)):
        answer = locked.put(path, {"type": "queue", "dead_letter": dead_letter}, headers=bearer(TENANT))
        assert answer.status == status
    inline = {**BODY, "config": {"dead_letter": f"jobs-{name}"}}
    assert locked.post(f"{path}-2", inline, headers=bearer(TENANT)).failed(403, "forbidden") == {
        "field": "config.dead_letter",
        "name": f"jobs-{name}",
    }
    locked.get(f"{path}-2", headers=bearer(OPS)).failed(404, "topic_not_found")
    locked.post(f"{path}-2", inline, headers=bearer(OPS)).ok(201)


def test_no_token_is_ever_logged(locked: Server) -> None:
    """Also when a request fails in the middle of everything."""
    tokens = (OPS, READER, WRITER, TENANT, WRONG)
    for token in tokens:
        for target in ("/v0/topics", f"/v0/topics/x?token={token}", f"/{token}", "/v0/topics/%zz"):
            locked.get(target, headers=bearer(token))
        locked.raw(f"GET /v0/topics HTTP/1.1\nAuthorization: Bearer {token}\nTransfer-Encoding: nonsense")
        locked.raw(f"BREW /{token} HTTP/1.1\nAuthorization: Bearer {token}")
        with locked.connect() as wire:
            wire.send(f"GET / HTTP/1.1\r\nAuthorization: Bearer {token}\r\nbroken\r\n\r\n".encode())
            wire.answer()
    lines = (locked.directory / "stderr").read_text()
    assert '"event": "auth.enabled", "keys": 4, "limited_by_prefix": 1' in lines
    assert "auth.disabled" not in lines
    for token in tokens:
        assert token not in lines
        assert token.split("-")[1] not in lines


# -- where keys are not


def memory_holds(pid: int, needles: list[bytes]) -> set[bytes]:
    """Which of these bytes stand anywhere in the memory that a process can write."""
    found: set[bytes] = set()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if match is None or "[vvar" in line:
                continue
            first, last = int(match[1], 16), int(match[2], 16)
            try:
                content = os.pread(memory.fileno(), last - first, first)
            except OSError:
                continue
            found |= {needle for needle in needles if needle in content}
    return found


def test_no_process_has_a_key_in_its_environment(own_locked: Server) -> None:
    processes = processes_of(own_locked)
    assert len(processes) == 5, processes
    for role, pid in processes.items():
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"PATH=" in environ
        for token in (OPS, READER, WRITER, TENANT):
            assert token.encode() not in environ, role
        if role != "supervisor":
            assert b"TOPICS_API_KEYS" not in environ, role
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert OPS.encode() not in command


def test_only_the_gateway_knows_the_keys_and_it_knows_digests(own_locked: Server) -> None:
    secret = [token.encode() for token in (OPS, READER, WRITER, TENANT)]
    digests = [hashlib.sha256(token).digest() for token in secret]
    for role, pid in processes_of(own_locked).items():
        if role == "supervisor":
            continue
        assert memory_holds(pid, secret) == set(), role
        found = memory_holds(pid, digests)
        assert found == (set(digests) if role.startswith("gateway") else set()), role


def test_a_gateway_that_dies_comes_back_with_its_keys(own_locked: Server) -> None:
    (gateway,) = [pid for role, pid in processes_of(own_locked).items() if role.startswith("gateway")]
    os.kill(gateway, signal.SIGKILL)

    def back() -> bool:
        try:
            return own_locked.get("/v0/ready").status == 200
        except httpx.TransportError:
            return False

    assert eventually(back)
    assert own_locked.get("/v0/topics").status == 401
    assert own_locked.get("/v0/topics", headers=bearer(READER)).status == 200


# -- starting


def test_keys_come_from_a_file_and_open_a_public_address(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\n".join(KEYS.split(",")) + "\n")
    server = Server(tmp_path, {"TOPICS_API_KEYS_FILE": str(tmp_path / "keys"), "TOPICS_HOST": "0.0.0.0"})
    try:
        server.start()
        assert server.get("/v0/topics").status == 401
        assert server.get("/v0/topics", headers=bearer(READER)).status == 200
        assert server.post("/v0/topics/x", BODY, headers=bearer(READER)).status == 403
        assert "auth.disabled" not in server.stderr()
    finally:
        server.end()


def test_as_many_keys_as_are_allowed_reach_the_gateway(tmp_path: Path) -> None:
    """More text than a pipe holds: nobody may wait for a reader that is not there yet."""
    lines = [f"{OPS}-{n}:rw:{'p' * 200}{n}.|own." for n in range(1000)]
    (tmp_path / "keys").write_text("\n".join(lines))
    server = Server(tmp_path, {"TOPICS_API_KEYS_FILE": str(tmp_path / "keys")})
    try:
        server.start()
        for token, status in ((f"{OPS}-0", 404), (f"{OPS}-999", 404), (f"{OPS}-1000", 401)):
            assert server.get("/v0/topics/own.x", headers=bearer(token)).status == status
    finally:
        server.end()


def test_probes_can_be_closed(tmp_path: Path) -> None:
    server = Server(tmp_path, {"TOPICS_API_KEYS": KEYS, "TOPICS_PROBE_AUTH": "true"})
    try:
        server.launch()
        server.wait_for_port()

        def ready() -> bool:
            try:
                return server.get("/v0/ready", headers=bearer(WRITER)).status == 200
            except httpx.TransportError:
                return False

        assert eventually(ready)
        for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
            assert server.get(path).status == 401
            assert server.get(path, headers=bearer(WRONG)).status == 401
            assert server.get(path, headers=bearer(WRITER)).status == 200
    finally:
        server.end()


@pytest.mark.parametrize(
    "settings",
    [
        {"TOPICS_API_KEYS": ""},
        {"TOPICS_API_KEYS": f"{OPS}:+"},
        {"TOPICS_API_KEYS": f"{OPS}:read+"},
        {"TOPICS_API_KEYS": f"{OPS}:raed"},
        {"TOPICS_API_KEYS": f"{OPS}, {READER}"},
        {"TOPICS_API_KEYS": f"{OPS},{OPS}:read"},
        {"TOPICS_API_KEYS": f"ops:{OPS}"},
        {"TOPICS_API_KEYS": f"{OPS}é"},
        {"TOPICS_API_KEYS_FILE": OPS},
        {"TOPICS_API_KEYS_FILE": ""},
        {"TOPICS_API_KEYS": OPS, "TOPICS_API_KEYS_FILE": "keys"},
        {"TOPICS_API_KEYS": OPS, "TOPICS_PROBE_AUTH": "maybe"},
    ],
    ids=range(12),
)
def test_keys_that_are_not_understood_start_nothing_and_are_not_shown(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    ended = subprocess.run(
        [sys.executable, "-m", "topics", "serve"],
        cwd=PROJECT_ROOT,
        env={**environ, "TOPICS_PORT": "0", "TOPICS_DATA_DIR": str(tmp_path / "data"), **settings},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 2
    said = ended.stdout + ended.stderr
    assert said.startswith("topics: TOPICS_") or said.startswith("topics: the file of TOPICS_API_KEYS_FILE")
    assert said.count("\n") == 1, "one sentence"
    for part in (OPS, OPS.split("-")[1], READER):
        assert part not in said
    assert not (tmp_path / "data").exists()


def test_requests_of_one_key_are_bounded_and_others_are_not_concerned(
    start_server: Callable[..., Server],
) -> None:
    server = start_server({"TOPICS_API_KEYS": "one,two", "TOPICS_MAX_INFLIGHT_PER_KEY": "2"})
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    server.put("/v0/topics/t", {}, headers=one).ok(201)
    with ThreadPoolExecutor(2) as pool:
        polls = [
            pool.submit(server.post, "/v0/topics/t/diff", {"wait_ms": 30_000}, headers=one) for _ in range(2)
        ]
        # Asked with another key, so that looking takes no place of theirs.
        server.wait_for(
            "both polls to wait",
            lambda: b"topics_requests_under_way 3\n" in server.get("/v0/metrics", headers=two).body,
        )
        refused = server.get("/v0/topics/t", headers=one)
        assert refused.failed(429, "throttled") == {"limit": "max_inflight_per_key", "max": 2}
        assert int(refused.headers["retry-after"]) >= 1
        server.post("/v0/topics/t", {"records": [{"data": 1}]}, headers=two).ok()
        assert [poll.result().status for poll in polls] == [200, 200]
    server.get("/v0/topics/t", headers=one).ok()
