"""From JSON records to COPY rows: the columns of a schema as data for the compiled loop."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from exactbatch.columns import Column
from exactbatch.compiled.binary_rows import CELL_PARTS, FORMAT, SCALE
from exactbatch.compiled.json_nested import MOST_NAMES
from exactbatch.compiled.json_rows import (
    BOOLEAN,
    CHECKED_JSON,
    COLUMN_PARTS,
    DATE,
    DECIMAL,
    DOUBLE,
    FACTOR,
    FIELD_PARTS,
    HIGH,
    INTEGER,
    JSON_AS_TEXT,
    LOW,
    MOST_FIELDS,
    NAME_START,
    NAME_STOP,
    NOTHING,
    NUMBER_AS_TEXT,
    POWERS_OF_TEN,
    PRECISION,
    READER,
    REAL,
    REQUIRED,
    SHIFT,
    TEXT,
    TIMESTAMP,
    json_rows,
)
from exactbatch.compiled.row_frame import (
    EPOCH_DAYS,
    EPOCH_US,
    JSONB,
    MOST_PRECISION,
    MOST_SCALE,
    Frame,
    cell_bound,
    row_format,
)

# Seconds since 1970, and days, of the years 1 to 9999, which the loop takes; formats/json/spec.py takes more.
_FIRST_SECOND: Final = -62_135_596_800
_LAST_SECOND: Final = 253_402_300_799
_DAY: Final = 86_400  # seconds
_READERS: Final = {
    "real": REAL,
    "double precision": DOUBLE,
    "boolean": BOOLEAN,
    "date": DATE,
    "timestamp without time zone": TIMESTAMP,
    "timestamp with time zone": TIMESTAMP,
    "bytea": TEXT,
    "json": JSON_AS_TEXT,
    "jsonb": JSON_AS_TEXT,
}
_BITS: Final = {"smallint": 16, "integer": 32, "bigint": 64}
_DECIMAL: Final = re.compile(r"numeric\((\d+),(\d+)\)")


class _Reader(NamedTuple):
    """How the loop reads a column: json_rows.py describes these parts."""

    reader: int
    low: int = 0
    high: int = 0
    factor: int = 1
    shift: int = 0
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class TakenRows:
    """The COPY rows of the records that were taken (or, without a frame, their fields alone), the position after each,
    and the indexes of the other records, ascending."""

    data: bytes
    ends: npt.NDArray[np.int64]
    declined_indexes: npt.NDArray[np.int64]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.ends)


class JsonKernel:
    """Writes the rows of JSON records, in the order of the columns."""

    def __init__(
        self,
        columns: Sequence[Column],
        epoch: Mapping[str, str],
        frame: Frame,
        required: Collection[str] = (),
        members: Mapping[str, str] | None = None,
        checked: Collection[str] = (),
    ) -> None:
        """`epoch` is that of formats.Json; a row with null in one of the columns `required` is declined. `members` has
        the names of the members that columns take, all different, if these are not the names of the columns. Each of
        the columns `checked`, of JSON, is followed by one more: a document that jsonb takes as it is goes into that.

        Raises ValueError for a column of a type that is_readable() does not know.
        """
        self._columns = np.zeros((len(columns) + len(checked), COLUMN_PARTS), np.int64)
        names, parts = b"", iter(self._columns)
        for column in columns:
            part = next(parts)
            reader, format_ = _reader(column, epoch.get(column.name)), row_format(column.arrow_type)
            if reader is None or format_ is None:
                raise ValueError(f"column {column.name!r}: the compiled loop does not read {column.type}")
            part[FORMAT], part[REQUIRED] = format_, column.name in required
            part[[READER, LOW, HIGH, FACTOR, SHIFT, PRECISION, SCALE]] = reader
            part[NAME_START] = len(names)
            names += (column.name if members is None else members[column.name]).encode()
            part[NAME_STOP] = len(names)
            if column.name in checked:
                part[READER] = CHECKED_JSON
                part = next(parts)
                part[FORMAT], part[READER] = JSONB, NOTHING
                part[NAME_STOP] = -1  # no name has this length
        self._names = np.frombuffer(names + b"\0", np.uint8)
        self._frame = frame
        bounds = map(cell_bound, self._columns[:, FORMAT].tolist())
        self._row_bound = len(frame.head) + len(frame.tail) + sum(bounds)
        self._cells = np.zeros((len(self._columns), CELL_PARTS), np.int64)
        self._last = np.zeros((MOST_FIELDS, FIELD_PARTS), np.int64)
        self._double = np.zeros(1, np.float64)
        self._hashes = np.zeros(MOST_NAMES, np.uint64)
        self._out = np.empty(0, np.uint8)

    def take(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.uint64],
        ends: npt.NDArray[np.uint64],
        present: npt.NDArray[np.bool_],
        offsets: npt.NDArray[np.int64],
        timestamps_ms: npt.NDArray[np.int64],
    ) -> TakenRows:
        """Write the rows of records, given as the arrays of a RecordBlock; decline those that are not present."""
        sizes = np.where(present, ends - starts, 0)
        bound = int(sizes.sum()) + len(starts) * self._row_bound
        if len(self._out) < bound:
            self._out = np.empty(bound * 5 // 4, np.uint8)
        row_ends, declined = np.empty(len(starts), np.int64), np.zeros(len(starts), np.bool_)
        times = np.where(present, timestamps_ms, 0) * 1000 - EPOCH_US
        # numba compiles another version for a writable array: not the one that was tried and kept on disk.
        data = data.view()
        data.flags.writeable = False
        rows = json_rows(
            data,
            np.where(present, starts, 0).astype(np.uint64, copy=False),
            np.where(present, ends, 0).astype(np.uint64, copy=False),
            present,
            offsets,
            times,
            self._columns,
            self._names,
            self._frame.head,
            self._frame.offset_at,
            self._frame.tail,
            POWERS_OF_TEN,
            self._cells,
            self._last,
            self._double,
            self._double.view(np.int64),
            self._hashes,
            self._out,
            row_ends,
            declined,
        )
        written = int(row_ends[rows - 1]) if rows else 0
        return TakenRows(self._out[:written].tobytes(), row_ends[:rows], np.flatnonzero(declined))


def is_readable(column: Column, epoch: str | None = None) -> bool:
    """True if the compiled loop reads and writes columns of this type."""
    return _reader(column, epoch) is not None and row_format(column.arrow_type) is not None


def _reader(column: Column, epoch: str | None) -> _Reader | None:
    """Return how the loop reads a column, with `epoch` as the unit of its numbers; None if it cannot."""
    if epoch is not None:
        return _epoch_reader(epoch)
    if bits := _BITS.get(column.type):
        return _Reader(INTEGER, low=-(2 ** (bits - 1)), high=2 ** (bits - 1) - 1)
    if column.element is not None:
        return None
    if column.type.startswith("numeric"):
        if column.staged_type == "text":
            return _Reader(NUMBER_AS_TEXT)
        match = _DECIMAL.fullmatch(column.type)
        precision, scale = (int(match[1]), int(match[2])) if match else (MOST_PRECISION + 1, 0)
        fits = precision <= MOST_PRECISION and scale <= MOST_SCALE
        return _Reader(DECIMAL, precision=precision, scale=scale) if fits else None
    reader = _READERS.get(column.type, TEXT if column.staged_type == "text" else None)
    return None if reader is None else _Reader(reader)


def _epoch_reader(unit: str) -> _Reader:
    """Return how numbers of a unit since 1970 are read: s, ms, us or ns of a timestamp, d of a date."""
    match unit:
        case "d":
            low, high = _FIRST_SECOND // _DAY, _LAST_SECOND // _DAY
            return _Reader(INTEGER, low=low, high=high, shift=EPOCH_DAYS)
        case "ns":  # all 64 bits are within the years 1677 to 2262
            low, high, factor = -(2**63), 2**63 - 1, -1000
        case _:
            per_second = {"s": 1, "ms": 1000, "us": 1_000_000}[unit]
            low, high = _FIRST_SECOND * per_second, _LAST_SECOND * per_second
            factor = 1_000_000 // per_second
    return _Reader(INTEGER, low=low, high=high, factor=factor, shift=EPOCH_US)
