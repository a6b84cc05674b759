"""What shards say to each other about caps over all of them, as parameters of a request.

* QUOTA_ASK, a holder to the owner: lend me so much. The answer is a QuotaLoan.
* QUOTA_STATE, the owner to a holder: say what you have, and give back what you do not use. The answer is
  a Statement.
"""

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

from topics.engine.quota import Statement
from topics.protocol.messages import ProtocolError
from topics.protocol.strict_cbor import CborRefused, decode_value, encode_value

T = TypeVar("T")


class QuotaAsk(msgspec.Struct, frozen=True):
    limit: str
    shard: int
    wanted: Annotated[int, msgspec.Meta(gt=0)]
    statement: Statement


class QuotaLoan(msgspec.Struct, frozen=True):
    lent: Annotated[int, msgspec.Meta(ge=0)]  # 0: there is no room


class QuotaState(msgspec.Struct, frozen=True):
    limit: str
    give_back: bool


def as_params(message: QuotaAsk | QuotaState) -> dict[str, object]:
    params: dict[str, object] = msgspec.to_builtins(message)
    return params


def from_params(params: Mapping[str, object], kind: type[T]) -> T:
    """Raises ProtocolError unless the parameters are this message."""
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{kind.__name__}: {error}") from None


def as_body(message: QuotaLoan | Statement) -> bytes:
    return encode_value(msgspec.to_builtins(message))


def from_body(body: bytes, kind: type[T]) -> T:
    """Raises ProtocolError unless the bytes are this message."""
    try:
        return msgspec.convert(decode_value(body), kind)
    except (CborRefused, msgspec.ValidationError) as error:
        raise ProtocolError(f"{kind.__name__}: {error}") from None
