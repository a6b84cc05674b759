"""A shard made of canned answers: it speaks the whole protocol and keeps nothing.

Tests give it an `answer` coroutine (request in, `Answer` out) and look at what it saw. It honours
credits in both directions, so a client that does not would hang in a test that has a timeout.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from topics.protocol import codec
from topics.protocol.codec import Decoder
from topics.protocol.messages import (
    INLINE_BYTES_MAX,
    PART_BYTES,
    PART_CREDITS,
    PROTOCOL_VERSION,
    BodyOpen,
    Cancel,
    Credit,
    Drain,
    Hello,
    Message,
    Op,
    Part,
    ReplyOpen,
    Request,
)
from topics.protocol.strict_cbor import encode_value


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b"{}"
    retry_after_s: int = 0


async def echo(request: Request) -> Answer:
    """Says what was asked, so that a test can see what arrived at the shard."""
    seen = {
        "op": request.op.name,
        "topic": request.topic.decode(),
        "params": codec.decode_params(request.params),
        "body": request.body.decode("utf-8", "replace"),
    }
    return Answer(200, json.dumps(seen).encode())


def status_answer(
    state: str = "ready", *, progress: float = 1.0, topics: int = 0, detail: str = ""
) -> Answer:
    value = {"state": state, "progress": progress, "topics": topics, "epoch": 1, "detail": detail}
    return Answer(200, encode_value(value))


def list_answer(names: list[str], request: Request) -> Answer:
    """What a shard that owns these topics answers to LIST_TOPICS."""
    params = codec.decode_params(request.params)
    prefix, after, limit = params.get("prefix", ""), params.get("after", ""), params["limit"]
    assert isinstance(prefix, str)
    assert isinstance(after, str)
    assert isinstance(limit, int)
    page = [name for name in sorted(names) if name.startswith(prefix) and name > after][:limit]
    return Answer(200, encode_value([[name, json.dumps({"topic": name}).encode()] for name in page]))


@dataclass
class FakeShard:
    path: Path
    index: int = 0
    answer: Callable[[Request], Awaitable[Answer]] = echo
    hello: Hello | bytes | None = None
    requests: list[Request] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    hellos: list[Hello] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    drains: int = 0
    links: int = 0
    # Parts are taken but not credited while this is False, so an upload stands still.
    credit_parts: bool = True
    # Set, and replaced, whenever something above has changed.
    changed: trio.Event = field(default_factory=trio.Event)
    # Set when the gateway drains: a canned long-poll may wait for it.
    drained: trio.Event = field(default_factory=trio.Event)
    _streams: list[trio.SocketStream] = field(default_factory=list)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listening = trio.socket.socket(trio.socket.AF_UNIX)
        with suppress(FileNotFoundError):
            self.path.unlink()
        await listening.bind(str(self.path))
        listening.listen()
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._serve, [trio.SocketListener(listening)])
            task_status.started()

    async def drop_links(self) -> None:
        for stream in self._streams:
            await trio.aclose_forcefully(stream)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(5):
            while not condition():
                await self.changed.wait()

    def _note(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.links += 1
        self._streams.append(stream)
        await _Link(self, stream).serve()
        self._streams.remove(stream)
        self._note()


class _Link:
    def __init__(self, shard: FakeShard, stream: trio.SocketStream) -> None:
        self.shard = shard
        self.stream = stream
        self.upload: tuple[BodyOpen, list[bytes]] | None = None
        self.credits: dict[int, int] = {}
        self.credited = trio.Event()
        self.scopes: dict[int, trio.CancelScope] = {}
        self.sending = trio.Lock()

    async def serve(self) -> None:
        hello = self.shard.hello or Hello(PROTOCOL_VERSION, "shard", self.shard.index, 1)
        await self.send(hello if isinstance(hello, bytes) else codec.encode(hello))
        decoder = Decoder()
        async with trio.open_nursery() as nursery:
            try:
                while chunk := await self.stream.receive_some(1 << 20):
                    self.shard.received.append(chunk)
                    for message in decoder.feed(chunk):
                        await self.take(message, nursery)
                    self.shard._note()
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                return
            finally:
                nursery.cancel_scope.cancel()

    async def take(self, message: Message, nursery: trio.Nursery) -> None:
        match message:
            case Hello():
                self.shard.hellos.append(message)
            case Request():
                self.start(message, nursery)
            case BodyOpen():
                assert self.upload is None, "two uploads at once"
                self.upload = (message, [])
            case Part():
                await self.take_part(message, nursery)
            case Credit(id, parts):
                self.credits[id] = self.credits.get(id, 0) + parts
                self.credited.set()
            case Cancel(id):
                self.shard.cancelled.append(id)
                if self.upload is not None and self.upload[0].id == id:
                    self.upload = None
                if id in self.scopes:
                    self.scopes[id].cancel()
            case Drain():
                self.shard.drains += 1
                self.shard.drained.set()
            case _:
                raise AssertionError(f"a client sent {message}")

    async def take_part(self, part: Part, nursery: trio.Nursery) -> None:
        if self.upload is None or self.upload[0].id != part.id:
            return
        head, parts = self.upload
        parts.append(part.data)
        have = sum(map(len, parts))
        assert have <= head.length
        if have == head.length:
            self.upload = None
            whole = Request(head.id, head.op, head.topic, head.arrived_ns, head.params, b"".join(parts))
            self.start(whole, nursery)
        elif self.shard.credit_parts:
            await self.send(codec.encode(Credit(part.id, 1)))

    def start(self, request: Request, nursery: trio.Nursery) -> None:
        self.shard.requests.append(request)
        nursery.start_soon(self.reply, request)

    async def reply(self, request: Request) -> None:
        with trio.CancelScope() as self.scopes[request.id]:
            answer = await self.shard.answer(request)
            if len(answer.body) <= INLINE_BYTES_MAX:
                head = codec.reply_head(request.id, answer.status, answer.retry_after_s, len(answer.body))
                await self.send(head + answer.body)
            else:
                await self.reply_in_parts(request.id, answer)
        self.scopes.pop(request.id, None)

    async def reply_in_parts(self, id: int, answer: Answer) -> None:
        self.credits[id] = self.credits.get(id, 0) + PART_CREDITS
        await self.send(codec.encode(ReplyOpen(id, answer.status, answer.retry_after_s, len(answer.body))))
        for at in range(0, len(answer.body), PART_BYTES):
            while self.credits[id] == 0:
                self.credited = trio.Event()
                await self.credited.wait()
            self.credits[id] -= 1
            await self.send(codec.encode(Part(id, answer.body[at : at + PART_BYTES])))

    async def send(self, data: bytes) -> None:
        async with self.sending:
            with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                await self.stream.send_all(data)


async def never(_: Request) -> Answer:
    """A shard that hangs."""
    await trio.sleep_forever()
    raise AssertionError("unreachable")


def by_op(answers: Mapping[Op, Callable[[Request], Answer]]) -> Callable[[Request], Awaitable[Answer]]:
    async def answer(request: Request) -> Answer:
        chosen = answers.get(request.op)
        return chosen(request) if chosen is not None else await echo(request)

    return answer
