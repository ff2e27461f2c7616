"""The compiled loop from JSON objects to COPY rows.

It takes an object only if all of it is as expected; whatever is unusual, or possibly refused, is declined, and
formats/json.py decides about it.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from exactbatch.compiled.binary_rows import ESCAPED, MISSING, NULL, VALUE, put, put_row
from exactbatch.compiled.compiler import entry, inlined
from exactbatch.compiled.json_nested import after_literal, after_nested, is_passed, is_space
from exactbatch.compiled.moments import read_date, read_timestamp
from exactbatch.compiled.numbers import MOST_DIGITS, has_nearest_real, nearest_double, read_number
from exactbatch.compiled.strings import end_of_string, has_unicode_escape, is_utf8

# What a column takes.
INTEGER: Final = (
    0  # an integer, which `lows` and `highs` limit; it is scaled by `factors` and moved by `shifts`
)
DOUBLE: Final = 1
REAL: Final = 2
BOOLEAN: Final = 3
TEXT: Final = 4
TIMESTAMP: Final = 5
DATE: Final = 6
DECIMAL: Final = 7  # a number with at most `precisions` digits and `scales` places
NUMBER_AS_TEXT: Final = 8
JSON_AS_TEXT: Final = 9
_NOTHING: Final = 10  # a field that is not a column

_U: Final = np.uint64
_1: Final = np.uint64(1)
_GREATEST_INTEGER: Final = np.uint64(2**63 - 1)
_QUOTE: Final = 34
_COMMA: Final = 44
_COLON: Final = 58
_MINUS: Final = 45
_ZERO: Final = 48
_OPEN_BRACKET: Final = 91
_OPEN_BRACE: Final = 123
_CLOSE_BRACE: Final = 125
_LETTER_N: Final = 110
_LETTER_T: Final = 116
_MOST_FIELDS: Final = 512  # of an object
# 10^0 to 10^22, all exact.
POWERS_OF_TEN: Final = np.array([float(10**power) for power in range(23)])


class JsonColumns(NamedTuple):
    """The n columns, as data: one machine code serves every schema. The constants above and those of binary_rows say
    what the numbers mean."""

    names: Any  # uint8: all names, one after the other
    name_starts: Any  # int64[n + 1]
    readers: Any  # int8[n]: what the column takes
    formats: Any  # int8[n]: how it is written
    lows: Any  # int64[n]
    highs: Any  # int64[n]
    factors: Any  # int64[n]: to multiply with; below 0, to divide by, rounding down
    shifts: Any  # int64[n]: to subtract afterwards
    precisions: Any  # int64[n]
    scales: Any  # int64[n]
    required: Any  # bool[n]: true if a row with null is declined


class _Cells(NamedTuple):
    """The values of one record, as put_row() expects them, and room to look at the bits of floats."""

    states: Any
    numbers: Any
    starts: Any
    lengths: Any
    double: Any
    double_bits: Any
    real: Any
    real_bits: Any


class _Names(NamedTuple):
    """The names of the fields of the last record, in their order: those of the next are probably the same."""

    starts: Any
    lengths: Any
    columns: Any
    combined: Any


@entry
def json_rows(
    buffer: Any,
    starts: Any,
    ends: Any,
    present: Any,
    offsets: Any,
    times: Any,
    columns: Any,
    frame: Any,
    powers_of_ten: Any,
    out: Any,
    declined: Any,
) -> Any:
    """Write a row for each record that is taken, and set `declined` for each other; return the bytes written.

    The first six arrays are those of a RecordBlock, with `times` in microseconds since 2000. `out` has room for all
    rows (JsonKernel.bound() computes how much).
    """
    count = len(columns.readers)
    double, real = np.empty(1, np.float64), np.empty(1, np.float32)
    cells = _Cells(
        np.zeros(count, np.int8),
        np.zeros(count, np.int64),
        np.zeros(count, np.uint64),
        np.zeros(count, np.int64),
        double,
        double.view(np.int64),
        real,
        real.view(np.int32),
    )
    names = _Names(
        np.zeros(_MOST_FIELDS, np.uint64),
        np.full(_MOST_FIELDS, -1, np.int64),
        np.zeros(_MOST_FIELDS, np.int64),
        np.zeros(_MOST_FIELDS, np.uint8),
    )
    written = 0
    for record in range(len(starts)):
        start, end = starts[record], ends[record]
        while start < end and is_space(buffer[start]):
            start += _1
        while start < end and is_space(buffer[end - _1]):
            end -= _1
        if (
            not present[record]
            or end < start + _U(2)
            or buffer[start] != _OPEN_BRACE
            or buffer[end - _1] != _CLOSE_BRACE
            or not _read_object(buffer, start, end, columns, cells, names, powers_of_ten)
            or _lacks_required(cells.states, columns.required)
        ):
            declined[record] = True
            continue
        written = _put_bytes(out, written, frame.head)
        put(out, written - len(frame.head) + frame.offset_at, offsets[record], 8)
        put(out, written - 8, times[record], 8)
        written = put_row(
            out,
            written,
            cells.states,
            cells.numbers,
            cells.starts,
            cells.lengths,
            buffer,
            columns.formats,
            columns.scales,
        )
        written = _put_bytes(out, written, frame.tail)
    return written


@inlined
def _put_bytes(out: Any, at: Any, constant: Any) -> Any:
    for byte in range(len(constant)):
        out[at + byte] = constant[byte]
    return at + len(constant)


@inlined
def _lacks_required(states: Any, required: Any) -> Any:
    for column in range(len(required)):
        if required[column] and states[column] <= NULL:
            return True
    return False


@inlined
def _after_space(buffer: Any, at: Any) -> Any:
    """Return the position of the next byte that is no white space; the last byte of a record is none."""
    while is_space(buffer[at]):
        at += _1
    return at


@inlined
def _read_object(
    buffer: Any, start: Any, end: Any, columns: Any, cells: Any, names: Any, powers_of_ten: Any
) -> Any:
    """Read an object that begins with `{` and ends with `}` into the cells; return whether it is taken.

    Reads stay inside the record: the last `}` ends every number and white space, and after anything else that is
    read there is at least this byte.
    """
    cells.states[:] = MISSING
    at = _after_space(buffer, start + _1)
    if buffer[at] == _CLOSE_BRACE:
        return at + _1 == end
    combined = np.uint8(0)
    field = 0
    while True:
        at, column, high = _read_name(buffer, at, end, field, columns, names)
        if at >= end:
            return False
        combined = np.uint8(combined | high)
        at = _after_space(buffer, at)
        if buffer[at] != _COLON or (column >= 0 and cells.states[column] != MISSING):
            return False
        at = _after_space(buffer, at + _1)
        at, high = _read_value(buffer, at, end, column, columns, cells, powers_of_ten)
        if at >= end:
            return False
        combined = np.uint8(combined | high)
        at = _after_space(buffer, at)
        separator = buffer[at]
        at += _1
        if separator == _CLOSE_BRACE:
            break
        if separator != _COMMA:
            return False
        at = _after_space(buffer, at)
        field += 1
    return at == end and (combined < 128 or is_utf8(buffer, start, end))


@inlined
def _read_name(buffer: Any, at: Any, end: Any, field: Any, columns: Any, names: Any) -> Any:
    """Return the position after a name, or `end` if it is declined, its column or -1, and its bytes combined."""
    if buffer[at] != _QUOTE or field >= _MOST_FIELDS:
        return end, np.int64(-1), np.uint8(0)
    name = at + _1
    length = names.lengths[field]
    if length >= 0 and name + _U(length) < end and buffer[name + _U(length)] == _QUOTE:
        last = names.starts[field]
        same = True
        for byte in range(length):
            if buffer[name + _U(byte)] != buffer[last + _U(byte)]:
                same = False
                break
        if same:
            return name + _U(length) + _1, names.columns[field], names.combined[field]
    stop, combined, has_escapes = end_of_string(buffer, name, end)
    if stop >= end or has_escapes:
        return end, np.int64(-1), np.uint8(0)
    column = _column_named(buffer, name, np.int64(stop - name), columns)
    names.starts[field] = name
    names.lengths[field] = np.int64(stop - name)
    names.columns[field] = column
    names.combined[field] = combined
    return stop + _1, column, combined


@inlined
def _column_named(buffer: Any, name: Any, length: Any, columns: Any) -> Any:
    for column in range(len(columns.readers)):
        start = columns.name_starts[column]
        if columns.name_starts[column + 1] - start != length:
            continue
        same = True
        for byte in range(length):
            if columns.names[start + byte] != buffer[name + _U(byte)]:
                same = False
                break
        if same:
            return np.int64(column)
    return np.int64(-1)


@inlined
def _read_value(
    buffer: Any, at: Any, end: Any, column: Any, columns: Any, cells: Any, powers_of_ten: Any
) -> Any:
    """Read a value into the cell of its column; return the position after it, or `end` if it is declined, and the
    bytes of its strings combined."""
    reader = np.int8(_NOTHING) if column < 0 else columns.readers[column]
    first = buffer[at]
    combined = np.uint8(0)
    if first == _QUOTE:
        stop, combined, has_escapes = end_of_string(buffer, at + _1, end)
        if stop >= end or not _read_string(buffer, at + _1, stop, has_escapes, reader, column, cells):
            return end, combined
        return stop + _1, combined
    if first == _MINUS or _ZERO <= first <= _ZERO + 9:
        start = at
        at, negative, digits, power, before, after, is_integer = read_number(buffer, at)
        if reader == _NOTHING or reader == NUMBER_AS_TEXT or reader == JSON_AS_TEXT:
            if not is_passed(power, before, after):
                return end, combined
            if reader != _NOTHING:
                _set_text(cells, column, start, at, VALUE)
            return at, combined
        if (
            before == 0
            or before + after > MOST_DIGITS
            or not _read_number(
                negative,
                digits,
                power,
                before - (before == 1 and _starts_with_zero(buffer, start, negative)),
                after,
                is_integer,
                reader,
                column,
                columns,
                cells,
                powers_of_ten,
            )
        ):
            return end, combined
        return at, combined
    if first == _OPEN_BRACE or first == _OPEN_BRACKET:
        start = at
        at, combined = after_nested(buffer, at, end)
        if at >= end or reader == _NOTHING:
            return at, combined
        if reader != JSON_AS_TEXT or has_unicode_escape(buffer, start, at):
            return end, combined
        _set_text(cells, column, start, at, VALUE)
        return at, combined
    start = at
    at = after_literal(buffer, at, end)
    if at >= end or reader == _NOTHING:
        return at, combined
    if first == _LETTER_N:
        cells.states[column] = NULL
        return at, combined
    if reader == JSON_AS_TEXT:
        _set_text(cells, column, start, at, VALUE)
        return at, combined
    if reader != BOOLEAN:
        return end, combined
    _set_number(cells, column, np.int64(first == _LETTER_T))
    return at, combined


@inlined
def _starts_with_zero(buffer: Any, start: Any, negative: Any) -> Any:
    """True for a number that begins with 0 or -0."""
    return buffer[start + (_1 if negative else _U(0))] == _ZERO


@inlined
def _set_number(cells: Any, column: Any, number: Any) -> None:
    cells.states[column] = VALUE
    cells.numbers[column] = number


@inlined
def _set_text(cells: Any, column: Any, start: Any, stop: Any, state: Any) -> None:
    cells.states[column] = state
    cells.starts[column] = start
    cells.lengths[column] = np.int64(stop - start)


@inlined
def _read_string(
    buffer: Any,
    start: Any,
    stop: Any,
    has_escapes: Any,
    reader: Any,
    column: Any,
    cells: Any,
) -> Any:
    """Read the string [start, stop) between quotes into the cell of its column; return whether it is taken."""
    if reader == TEXT:
        _set_text(cells, column, start, stop, ESCAPED if has_escapes else VALUE)
        return True
    if reader == _NOTHING:
        return True
    if reader == JSON_AS_TEXT:
        _set_text(cells, column, start - _1, stop + _1, VALUE)
        return not has_escapes or not has_unicode_escape(buffer, start, stop)
    if has_escapes:
        return False
    if reader == TIMESTAMP:
        number, good = read_timestamp(buffer, start, stop)
        _set_number(cells, column, number)
        return good
    if reader == DATE:
        number, good = read_date(buffer, start, stop)
        _set_number(cells, column, number)
        return good
    return False


@inlined
def _read_number(
    negative: Any,
    digits: Any,
    power: Any,
    before: Any,
    after: Any,
    is_integer: Any,
    reader: Any,
    column: Any,
    columns: Any,
    cells: Any,
    powers_of_ten: Any,
) -> Any:
    """Read a number of at most MOST_DIGITS digits, `before` and `after` its point, into the cell of its column; return
    whether it is taken."""
    if reader == INTEGER:
        if not is_integer or digits > _GREATEST_INTEGER or (negative and digits == _U(0)):
            return False
        number = -np.int64(digits) if negative else np.int64(digits)
        if number < columns.lows[column] or number > columns.highs[column]:
            return False
        factor = columns.factors[column]
        if factor > 0:
            number *= factor
        else:
            number //= -factor
        _set_number(cells, column, number - columns.shifts[column])
        return True
    if reader == DOUBLE or reader == REAL:
        double, good = nearest_double(digits, power, powers_of_ten)
        cells.double[0] = double
        bits = cells.double_bits[0]
        if reader == DOUBLE:
            cells.double[0] = -double if negative else double
            _set_number(cells, column, cells.double_bits[0])
            return good
        if not good or not has_nearest_real(double, bits):
            return False
        real = np.float32(double)
        cells.real[0] = -real if negative else real
        _set_number(cells, column, np.int64(cells.real_bits[0]))
        return True
    if reader == DECIMAL:
        scale = columns.scales[column]
        if power != -after or after > scale or before + after > columns.precisions[column]:
            return False
        if before > columns.precisions[column] - scale:
            return False
        number = np.int64(digits)
        for _ in range(scale - after):
            number *= 10
        _set_number(cells, column, -number if negative else number)
        return True
    return False
