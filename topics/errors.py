"""The error catalogue: every answer that is not a success, with its code, status and whose move it is.

A `TopicsError` is raised where a rule is broken and rendered once, at the edge of the process that
noticed it. `code` is stable and clients branch on it; `message` is for people; `detail` names the
field, the value and the limit.
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec


class TopicsError(Exception):
    """A refused request. Subclasses fix the code and the status."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500

    def __init__(
        self, message: str, *, retry_after_s: int = 0, detail: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.detail = dict(detail or {})

    def body(self) -> bytes:
        """The JSON error envelope, without its closing brace, so that a performance block can follow."""
        error: dict[str, object] = {"code": self.code, "message": self.message}
        if self.detail:
            error["detail"] = self.detail
        return b'{"error":' + msgspec.json.encode(error)


class Internal(TopicsError):
    """A bug of ours."""


class InvalidRequest(TopicsError):
    code, http_status = "invalid_request", 400

    def __init__(self, message: str, *, field: str, **detail: object) -> None:
        super().__init__(message, detail={"field": field, **detail})


class BatchTooLarge(InvalidRequest):
    code = "batch_too_large"


class RecordTooLarge(InvalidRequest):
    code = "record_too_large"


class Unauthorized(TopicsError):
    code, http_status = "unauthorized", 401


class Forbidden(TopicsError):
    code, http_status = "forbidden", 403


class RouteNotFound(TopicsError):
    code, http_status = "not_found", 404

    def __init__(self, path: str) -> None:
        super().__init__(f"no such route: {path}", detail={"path": path})


class TopicNotFound(TopicsError):
    code, http_status = "topic_not_found", 404

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" does not exist', detail={"topic": topic})


class MethodNotAllowed(TopicsError):
    code, http_status = "method_not_allowed", 405

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(
            f"{method} is not allowed here; allowed: {allowed}",
            detail={"method": method, "allowed": allowed},
        )
        self.allowed = allowed


class TopicExistsIncompatible(TopicsError):
    code, http_status = "topic_exists_incompatible", 409


class TopicNotEmpty(TopicsError):
    code, http_status = "topic_not_empty", 409


class PayloadTooLarge(TopicsError):
    code, http_status = "payload_too_large", 413

    def __init__(self, limit_bytes: int, *, variable: str = "TOPICS_MAX_BODY_BYTES") -> None:
        super().__init__(
            f"the request body is larger than {limit_bytes} bytes ({variable})",
            detail={"limit": limit_bytes, "variable": variable},
        )


class UnsupportedMediaType(TopicsError):
    code, http_status = "unsupported_media_type", 415


class TopicFull(TopicsError):
    code, http_status = "topic_full", 422


class Throttled(TopicsError):
    code, http_status = "throttled", 429


class LimitReached(Throttled):
    """A cap of the whole server, or of one key; `limit` is its variable's name without `TOPICS_`."""

    def __init__(self, limit: str, maximum: int, what: str) -> None:
        super().__init__(
            f"{what}: at most {maximum} (TOPICS_{limit.upper()})",
            retry_after_s=1,
            detail={"limit": limit, "max": maximum},
        )


class NotReady(TopicsError):
    """The log is being replayed, a shard is down or cannot write: try again later."""

    code, http_status = "not_ready", 503

    def __init__(
        self, message: str, *, retry_after_s: int = 1, detail: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s, detail=detail)


class ShuttingDown(NotReady):
    code = "shutting_down"
