"""Readers of Avro's logical types that fastavro lacks, or that refuse what the specification does not allow.

fastavro's own readers round a decimal to the precision of its schema, and read a negative time as a time of the day
before. fastavro looks readers up by name: these have other names, so that other users of fastavro are not affected.
"""

from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final
from uuid import UUID

import fastavro.read

from exactbatch.formats.avro.parsed_schema import CHECKED

_MIDNIGHT: Final = datetime(1970, 1, 1)
_DAY: Final = timedelta(days=1)


class InvalidAvro(ValueError):
    """A value that its schema does not allow. The message is the reason of the reject."""


def register() -> None:
    """Register the readers with fastavro; may be called several times."""
    readers: Any = fastavro.read.LOGICAL_READERS
    readers[f"bytes-{CHECKED}decimal"] = readers[f"fixed-{CHECKED}decimal"] = _decimal
    readers[f"int-{CHECKED}time-millis"] = _time_in("milliseconds")
    readers[f"long-{CHECKED}time-micros"] = _time_in("microseconds")
    readers[f"long-{CHECKED}timestamp-nanos"] = _timestamp_after(_MIDNIGHT.replace(tzinfo=UTC))
    readers[f"long-{CHECKED}local-timestamp-nanos"] = _timestamp_after(_MIDNIGHT)
    readers[f"fixed-{CHECKED}uuid"] = _uuid


def _decimal(data: bytes, writer_schema: Any, _reader_schema: Any = None) -> Decimal:
    if not data:
        raise InvalidAvro("expected the bytes of a decimal, found none")
    unscaled = int.from_bytes(data, "big", signed=True)
    precision, scale = writer_schema["precision"], writer_schema.get("scale", 0)
    if abs(unscaled) >= 10**precision:
        raise InvalidAvro(f"expected a decimal of at most {precision} digits, found more")
    return Decimal(unscaled).scaleb(-scale, Context(prec=precision))


def _uuid(data: bytes, _writer_schema: Any, _reader_schema: Any = None) -> UUID:
    return UUID(bytes=data)


def _timestamp_after(epoch: datetime) -> Callable[[int, Any, Any], datetime]:
    def read(nanoseconds: int, _writer_schema: Any, _reader_schema: Any = None) -> datetime:
        return epoch + timedelta(microseconds=nanoseconds // 1_000)

    return read


def _time_in(unit: str) -> Callable[[int, Any, Any], time]:
    def read(number: int, _writer_schema: Any, _reader_schema: Any = None) -> time:
        try:
            since = timedelta(**{unit: number})
        except OverflowError:
            since = _DAY
        if not timedelta(0) <= since < _DAY:
            raise InvalidAvro(f"expected a time from 0 to 24 hours after midnight, found {number} {unit}")
        return (_MIDNIGHT + since).time()

    return read
