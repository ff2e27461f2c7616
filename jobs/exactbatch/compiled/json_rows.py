"""The compiled loop from JSON objects to COPY rows.

It takes an object only if all of it is as expected; whatever is unusual, or possibly refused, is declined, and
formats/json/spec.py decides about it. The grammar is in one module, because numba compiles its functions into one loop.
"""

from typing import Any, Final

import numpy as np

from exactbatch.compiled.binary_rows import (
    ESCAPED,
    LENGTH,
    MISSING,
    NULL,
    NUMBER,
    SCALE,
    START,
    STATE,
    VALUE,
    put8,
    put_row,
)
from exactbatch.compiled.compiler import called, entry, inlined
from exactbatch.compiled.iso_times import read_date, read_timestamp
from exactbatch.compiled.json_nested import after_literal, after_nested, is_passed, is_space
from exactbatch.compiled.numbers import MOST_DIGITS, nearest_double, nearest_real_bits, read_number
from exactbatch.compiled.strings import end_of_string, has_unicode_escape, is_utf8

# The parts of a column, after the parts in binary_rows. Columns are data: one machine code serves every schema.
READER: Final = 2  # what the column takes: one of the next constants
LOW: Final = 3  # of an integer: its limits
HIGH: Final = 4
FACTOR: Final = 5  # of an integer: multiply by it; below 0, divide by it and round down
SHIFT: Final = 6  # of an integer: subtract that afterwards
PRECISION: Final = 7  # of a numeric
REQUIRED: Final = 8  # 1 if a row with null in the column is declined
NAME_START: Final = 9  # the range of its name in `names`
NAME_STOP: Final = 10
COLUMN_PARTS: Final = 11

INTEGER: Final = 0
DOUBLE: Final = 1
REAL: Final = 2
BOOLEAN: Final = 3
TEXT: Final = 4
TIMESTAMP: Final = 5
DATE: Final = 6
DECIMAL: Final = 7  # a number with at most PRECISION digits and SCALE places
NUMBER_AS_TEXT: Final = 8
JSON_AS_TEXT: Final = 9
# JSON: in the next column of the table if jsonb certainly takes it as it is, or as text.
CHECKED_JSON: Final = 10
NOTHING: Final = 11  # a field that is not a column, and a column that takes no field

_U: Final = np.uint64
_1: Final = np.uint64(1)
_GREATEST_INTEGER: Final = np.uint64(2**63 - 1)
_SIGN_OF_DOUBLE: Final = np.int64(-(2**63))
_SIGN_OF_REAL: Final = np.int64(2**31)
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
MOST_FIELDS: Final = 512  # of an object
# Bytes: a string, array or object of a jsonb may take 256 MB, and a digit may become twelve bytes.
MOST_CHECKED: Final = 16 * 1024 * 1024
# 10^0 to 10^22, all exact.
POWERS_OF_TEN: Final = np.array([float(10**power) for power in range(23)])


# What is remembered of each field of the last record: the fields of the next one probably have the same names.
_NAME_AT: Final = 0  # the position of its name
_NAME_LENGTH: Final = 1  # in bytes; -1 if there was no such field
_NAME_COLUMN: Final = 2  # its column, or -1
_NAME_BITS: Final = 3  # its bytes combined by or
FIELD_PARTS: Final = 4


@entry
def json_rows(
    buffer: Any,
    starts: Any,
    ends: Any,
    present: Any,
    offsets: Any,
    times: Any,
    columns: Any,
    names: Any,
    head: Any,
    offset_at: Any,
    tail: Any,
    powers_of_ten: Any,
    cells: Any,
    last: Any,
    double: Any,
    double_bits: Any,
    hashes: Any,
    out: Any,
    row_ends: Any,
    declined: Any,
) -> Any:
    """Write a row for each record that is taken, and set `declined` for each other; return the number of rows.

    The first six arrays are those of a RecordBlock, with `times` in microseconds since 2000. `columns` is int64[c,
    COLUMN_PARTS], `names` has the bytes of their names; `head`, `offset_at` and `tail` are those of a Frame. `out` has
    room for all rows; `row_ends`, int64, receives the position after each. The rest is for the loop's own use: `cells`
    is int64[c, CELL_PARTS], `last` int64[MOST_FIELDS, FIELD_PARTS], `double` float64[1], `double_bits` the same
    memory as int64, and `hashes` uint64[MOST_NAMES].
    """
    for field in range(len(last)):
        last[field, _NAME_LENGTH] = -1  # what it holds are positions in another buffer
    rows = written = 0
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
            or not _read_object(
                buffer, start, end, columns, names, cells, last, powers_of_ten, double, double_bits, hashes
            )
            or _lacks_required(cells, columns)
        ):
            declined[record] = True
            continue
        if len(head) > 0:
            put_at = written
            written = _put_bytes(out, written, head)
            put8(out, put_at + offset_at, offsets[record])
            put8(out, written - 8, times[record])
        written = put_row(out, written, cells, buffer, columns)
        written = _put_bytes(out, written, tail)
        row_ends[rows] = written
        rows += 1
    return rows


@inlined
def _put_bytes(out: Any, at: Any, constant: Any) -> Any:
    for byte in range(len(constant)):
        out[at + byte] = constant[byte]
    return at + len(constant)


@inlined
def _lacks_required(cells: Any, columns: Any) -> Any:
    for column in range(len(columns)):
        if columns[column, REQUIRED] == 1 and cells[column, STATE] <= NULL:
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
    buffer: Any,
    start: Any,
    end: Any,
    columns: Any,
    names: Any,
    cells: Any,
    last: Any,
    powers_of_ten: Any,
    double: Any,
    double_bits: Any,
    hashes: Any,
) -> Any:
    """Read an object that begins with `{` and ends with `}` into the cells; return whether it is taken.

    Reads stay inside the record: the last `}` ends every number and white space, and after anything else that is
    read there is at least this byte.
    """
    for column in range(len(cells)):
        cells[column, STATE] = MISSING
    at = _after_space(buffer, start + _1)
    if buffer[at] == _CLOSE_BRACE:
        return at + _1 == end
    combined = np.uint8(0)
    field = 0
    while True:
        at, column, high = _read_name(buffer, at, end, field, columns, names, last)
        if at >= end:
            return False
        combined = np.uint8(combined | high)
        at = _after_space(buffer, at)
        if buffer[at] != _COLON or (column >= 0 and cells[column, STATE] != MISSING):
            return False
        at = _after_space(buffer, at + _1)
        at, high = _read_value(
            buffer, at, end, column, columns, cells, powers_of_ten, double, double_bits, hashes
        )
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
def _read_name(buffer: Any, at: Any, end: Any, field: Any, columns: Any, names: Any, last: Any) -> Any:
    """Return the position after a name, or `end` if it is declined, its column or -1, and its bytes combined."""
    if buffer[at] != _QUOTE or field >= MOST_FIELDS:
        return end, np.int64(-1), np.uint8(0)
    name = at + _1
    length = last[field, _NAME_LENGTH]
    if length >= 0 and name + _U(length) < end and buffer[name + _U(length)] == _QUOTE:
        known = _U(last[field, _NAME_AT])
        same = True
        for byte in range(length):
            if buffer[name + _U(byte)] != buffer[known + _U(byte)]:
                same = False
                break
        if same:
            return name + _U(length) + _1, last[field, _NAME_COLUMN], np.uint8(last[field, _NAME_BITS])
    stop, combined, has_escapes = end_of_string(buffer, name, end)
    if stop >= end or has_escapes:
        return end, np.int64(-1), np.uint8(0)
    column = _column_named(buffer, name, np.int64(stop - name), columns, names)
    last[field, _NAME_AT] = np.int64(name)
    last[field, _NAME_LENGTH] = np.int64(stop - name)
    last[field, _NAME_COLUMN] = column
    last[field, _NAME_BITS] = np.int64(combined)
    return stop + _1, column, combined


@called
def _column_named(buffer: Any, name: Any, length: Any, columns: Any, names: Any) -> Any:
    for column in range(len(columns)):
        start = columns[column, NAME_START]
        if columns[column, NAME_STOP] - start != length:
            continue
        same = True
        for byte in range(length):
            if names[start + byte] != buffer[name + _U(byte)]:
                same = False
                break
        if same:
            return np.int64(column)
    return np.int64(-1)


@inlined
def _read_value(
    buffer: Any,
    at: Any,
    end: Any,
    column: Any,
    columns: Any,
    cells: Any,
    powers_of_ten: Any,
    double: Any,
    double_bits: Any,
    hashes: Any,
) -> Any:
    """Read a value into the cell of its column; return the position after it, or `end` if it is declined, and the
    bytes of its strings combined."""
    reader = np.int64(NOTHING) if column < 0 else columns[column, READER]
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
        if reader == NOTHING or reader == NUMBER_AS_TEXT or reader == JSON_AS_TEXT or reader == CHECKED_JSON:
            if not is_passed(power, before, after):
                return end, combined
            if reader != NOTHING:
                _set_document(cells, column, start, at, reader == CHECKED_JSON)
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
                double,
                double_bits,
            )
        ):
            return end, combined
        return at, combined
    if first == _OPEN_BRACE or first == _OPEN_BRACKET:
        start = at
        names_seen = hashes if reader == CHECKED_JSON else hashes[:0]
        at, combined, is_unique = after_nested(buffer, at, end, names_seen)
        if at >= end or reader == NOTHING:
            return at, combined
        if (reader != JSON_AS_TEXT and reader != CHECKED_JSON) or has_unicode_escape(buffer, start, at):
            return end, combined
        _set_document(cells, column, start, at, is_unique)
        return at, combined
    start = at
    at = after_literal(buffer, at, end)
    if at >= end or reader == NOTHING:
        return at, combined
    if first == _LETTER_N:
        cells[column, STATE] = NULL
        return at, combined
    if reader == JSON_AS_TEXT or reader == CHECKED_JSON:
        _set_document(cells, column, start, at, reader == CHECKED_JSON)
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
    cells[column, STATE] = VALUE
    cells[column, NUMBER] = number


@inlined
def _set_text(cells: Any, column: Any, start: Any, stop: Any, state: Any) -> None:
    cells[column, STATE] = state
    cells[column, START] = np.int64(start)
    cells[column, LENGTH] = np.int64(stop - start)


@inlined
def _set_document(cells: Any, column: Any, start: Any, stop: Any, is_checked: Any) -> None:
    """Set a text that jsonb, json or numeric takes; the text of a checked document goes into the next column."""
    if is_checked and stop - start <= _U(MOST_CHECKED):
        cells[column, STATE] = NULL
        _set_text(cells, column + 1, start, stop, VALUE)
    else:
        _set_text(cells, column, start, stop, VALUE)


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
    if reader == NOTHING:
        return True
    if reader == JSON_AS_TEXT or reader == CHECKED_JSON:
        _set_document(cells, column, start - _1, stop + _1, reader == CHECKED_JSON)
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
    double: Any,
    double_bits: Any,
) -> Any:
    """Read a number of at most MOST_DIGITS digits, `before` and `after` its point, into the cell of its column; return
    whether it is taken."""
    if reader == INTEGER:
        if not is_integer or digits > _GREATEST_INTEGER or (negative and digits == _U(0)):
            return False
        number = -np.int64(digits) if negative else np.int64(digits)
        if number < columns[column, LOW] or number > columns[column, HIGH]:
            return False
        factor = columns[column, FACTOR]
        if factor > 0:
            number *= factor
        else:
            number //= -factor
        _set_number(cells, column, number - columns[column, SHIFT])
        return True
    if reader == DOUBLE or reader == REAL:
        nearest, good = nearest_double(digits, power, powers_of_ten)
        double[0] = nearest
        bits = double_bits[0]
        if reader == DOUBLE:
            _set_number(cells, column, bits | _SIGN_OF_DOUBLE if negative else bits)
            return good
        real_bits, is_nearest = nearest_real_bits(nearest, bits)
        _set_number(cells, column, real_bits | _SIGN_OF_REAL if negative else real_bits)
        return good and is_nearest
    if reader == DECIMAL:
        scale = columns[column, SCALE]
        if power != -after or after > scale or before + after > columns[column, PRECISION]:
            return False
        if before > columns[column, PRECISION] - scale:
            return False
        number = np.int64(digits)
        for _ in range(scale - after):
            number *= 10
        _set_number(cells, column, -number if negative else number)
        return True
    return False
