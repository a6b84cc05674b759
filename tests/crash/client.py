"""HTTP as a plain client speaks it: one connection that is kept, or one per question."""

import http.client
import json
from dataclasses import dataclass
from types import TracebackType
from typing import Any

TIMEOUT_S = 40.0


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def code(self) -> str:
        """The error code; empty for a success."""
        return str(self.body["error"]["code"]) if "error" in self.body else ""

    @property
    def detail(self) -> dict[str, Any]:
        detail: dict[str, Any] = self.body["error"].get("detail", {})
        return detail

    @property
    def retry_after_s(self) -> int:
        return int(self.headers.get("retry-after", "0"))


class Connection:
    """A connection that is kept between questions. After an error it must be closed."""

    def __init__(self, address: Address, *, timeout_s: float = TIMEOUT_S) -> None:
        self._http = http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def connect(self) -> None:
        self._http.connect()

    def ask(self, method: str, path: str, body: object = None, *, accept: str = "*/*") -> Reply:
        """One question, one answer. Raises OSError if there is none."""
        headers = {"Accept": accept} | ({} if body is None else {"Content-Type": "application/json"})
        try:
            self._http.request(method, path, None if body is None else json.dumps(body), headers)
            answer = self._http.getresponse()
            content = answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        return Reply(
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            json.loads(content),
        )


def ask(
    address: Address, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S
) -> Reply:
    """One question on a connection of its own."""
    with Connection(address, timeout_s=timeout_s) as connection:
        return connection.ask(method, path, body)
