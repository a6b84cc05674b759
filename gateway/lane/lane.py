"""What a connection needs from the reactor around it."""

from typing import TYPE_CHECKING, Any, Protocol

from gateway.effects import Effect, Handling
from gateway.http import Request, Response

if TYPE_CHECKING:
    from gateway.context import Gateway
    from gateway.lane.connection import Connection
    from gateway.lane.openings import Openings


class Lane(Protocol):
    gateway: "Gateway"
    openings: "Openings"

    def handle(self, request: Request) -> Handling[Response]: ...
    def in_task(self, connection: "Connection", effect: Effect[Any]) -> None: ...
    def hand_over(self, connection: "Connection", data: bytes) -> None: ...
    def resume(self, connection: "Connection", result: Any, error: Exception | None) -> None: ...
    def come_back(self, connection: "Connection") -> None: ...
    def rearm(self, connection: "Connection") -> None: ...
    def drop(self, connection: "Connection") -> None: ...
