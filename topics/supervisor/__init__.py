"""The supervisor: it owns the data directory's lock, the listening socket and the child processes.

Kept here and nowhere else:
  * Everything that can refuse a start is checked before the first child lives.
  * Children are programs, started by name; nothing of theirs is imported.
  * Of API keys only digests are left before the first child lives, and only the gateway is told them.
  * A stop goes from the outside in: gateway (it drains), router-worker, shards (they sync and close).
  * No child is left behind: at a stop each wait is bounded, and if the supervisor is killed the
    kernel ends the children.
"""

import logging
import signal
import socket
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace

import trio

import topics
from topics.keys import Key
from topics.settings import Settings
from topics.supervisor import datadir, listener
from topics.supervisor.children import Child, Ground
from topics.supervisor.datadir import StartRefused
from topics.supervisor.forget import forget_keys
from topics.supervisor.notify import Notifier

__all__ = ["Programs", "StartRefused", "serve"]

log = logging.getLogger(__name__)

# Beyond its own drain timeout, a gateway gets this long to close what is left.
GATEWAY_STOP_EXTRA_S = 2.0
ROUTER_STOP_S = 5.0
# A shard finishes its group, syncs and closes its log; on a slow disk this takes a while.
SHARD_STOP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The modules that run as children."""

    shard: str = "shards.worker"
    router: str = "shards.router"
    gateway: str = "gateway.serve"


def serve(settings: Settings, environ: MutableMapping[str, str], programs: Programs | None = None) -> int:
    """Run a server until SIGTERM or SIGINT; its exit code. Raises StartRefused or SettingsError.

    The keys are in `settings` as digests; their text is taken out of `environ` and of this process.
    """
    forget_keys(environ)
    data_dir = settings.data_dir.absolute()
    with datadir.hold(data_dir):
        layout = datadir.open_layout(data_dir, settings.wal_shards)
        with listener.listen(settings) as sock:
            port = listener.bound_port(sock)
            with datadir.runtime(data_dir, host=settings.host, port=port) as socket_dir:
                if settings.port_file is not None:
                    listener.write_port_file(settings.port_file, port)
                ground = Ground(
                    data_dir=data_dir,
                    socket_dir=socket_dir,
                    shard_count=layout.shards,
                    settings=replace(settings, wal_shards=layout.shards, port=port, keys=()),
                    environ=environ,
                )
                supervisor = Supervisor(
                    ground, sock, Notifier.from_environ(environ), programs or Programs(), settings.keys
                )
                return trio.run(supervisor.run)


class Supervisor:
    """The life of one server after its start was granted."""

    def __init__(
        self,
        ground: Ground,
        sock: socket.socket,
        notifier: Notifier,
        programs: Programs,
        keys: tuple[Key, ...],
    ) -> None:
        self._ground = ground
        self._keys = keys
        self._sock = sock
        self._notifier = notifier
        self._announced = False
        self._ready = False
        self._shards = [
            Child("shard", index, programs.shard, ground, on_state=self._take_stock)
            for index in range(ground.shard_count)
        ]
        self._router = Child("router", 0, programs.router, ground)
        self._gateway = Child(
            "gateway",
            0,
            programs.gateway,
            ground,
            listen_fd=sock.fileno(),
            keys=keys,
            on_state=self._take_stock,
        )

    async def run(self) -> int:
        _tell_who_may_come_in(self._ground.settings, self._keys)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                for child in (*self._shards, self._router, self._gateway):
                    nursery.start_soon(child.run)
                nursery.start_soon(self._notifier.keep_watchdog_fed)
                number = await anext(signals)
                log.info("server.stopping", extra={"signal": signal.Signals(number).name})
                clean = await self._stop()
                nursery.cancel_scope.cancel()
        log.info("server.stopped", extra={"clean": clean})
        return 0 if clean else 1

    async def _stop(self) -> bool:
        """From the outside in. Whether every shard closed its log by itself."""
        self._notifier.send("STOPPING=1")
        # The gateway closes its copy when it hears of the stop; then the kernel refuses connections.
        self._sock.close()
        drain_s = self._ground.settings.drain_timeout_ms / 1000
        await self._gateway.stop(drain_s + GATEWAY_STOP_EXTRA_S)
        await self._router.stop(ROUTER_STOP_S)
        closed: list[bool] = []

        async def close(shard: Child) -> None:
            closed.append(await shard.stop(SHARD_STOP_S))

        async with trio.open_nursery() as nursery:
            for shard in self._shards:
                nursery.start_soon(close, shard)
        return all(closed)

    def _take_stock(self) -> None:
        if self._gateway.listening and not self._announced:
            self._announced = True
            _announce(self._ground, with_key=bool(self._keys))
        if self._gateway.ready and all(shard.ready for shard in self._shards) and not self._ready:
            self._ready = True
            log.info("server.ready", extra={"shards": len(self._shards)})
            self._notifier.send("READY=1")


def _tell_who_may_come_in(settings: Settings, keys: tuple[Key, ...]) -> None:
    if keys:
        log.info(
            "auth.enabled",
            extra={"keys": len(keys), "limited_by_prefix": sum(bool(one.prefixes) for one in keys)},
        )
    elif settings.loopback:
        log.warning(
            "auth.disabled",
            extra={"note": "DEV MODE: no API keys; every program on this machine may read, write and delete"},
        )
    else:
        log.warning(
            "auth.disabled",
            extra={
                "note": "INSECURE: no API keys on a public address; everyone who reaches it may read, write "
                "and delete (TOPICS_ALLOW_INSECURE_NO_AUTH)",
                "host": settings.host,
            },
        )


def _announce(ground: Ground, *, with_key: bool) -> None:
    url = listener.base_url(ground.settings.host, ground.settings.port)
    topic = f"{url}/v0/topics/hello"
    post = "curl -X POST -H 'Content-Type: application/json'"
    if with_key:
        post += " -H 'Authorization: Bearer <key>'"
    lines = (
        f"topics {topics.__version__} listens on {url}",
        f"data directory {ground.data_dir}, {ground.shard_count} shards; Ctrl-C stops it",
        "",
        "Try in another terminal (write, read, wait for the next record):",
        f"""  {post} -d '{{"records":[{{"data":{{"text":"hello"}}}}]}}' {topic}""",
        f"""  {post} -d '{{"from_seq":0}}' {topic}/diff""",
        f"""  {post} -d '{{"from_seq":1,"wait_ms":30000}}' {topic}/diff""",
    )
    # Nobody may be reading, and that is no reason to stop.
    with suppress(OSError):
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
