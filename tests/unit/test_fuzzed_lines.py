"""Fuzzed lines of CSV and texts become what a strict reader in plain Python says of each by itself.

EXACTBATCH_SEED repeats a run.
"""

import random
import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from exactbatch.formats import Csv, Format, Text
from exactbatch.formats.decoders import find_decoder
from support.environment import draw_seed

COUNT = 1_500
SCHEMA = "i int, s smallint, d numeric(10,2), n numeric, t bool, day date, name text"

PIECES = [
    *'",\n\r\t\0 -+.0129eExX', '""', "\r\n", "é", "\ufeff", "NaN", "inf", "1e-41", "1e-100000", "0x", "true",
    "2024-02-30", "9" * 40, "1_0", "\u00a0", "null",
]  # fmt: skip
FIELDS: list[list[str]] = [
    ["", "0", "-7", " 12\t", "007", "2147483647", "2147483648", "-2147483649", "+1", "1.0",
     "0xffff", "x", '"5"', '""'],
    ["", "0", "32767", "-32768", "32768", "-32769", "0xffff", "0X1", '" 3 "', "1e1"],
    ["", "1.25", "-0.5", "+1", ".5", "5.", "1e2", "10e-3", "1e-3", "1e-41", "5e-77", "1e-100000", "99999999.99",
     "100000000", "1.50000000000", " 2 ", '"1.5"', "1 5", "NaN", "-", "."],
    ["", "1", " -1.5e3\t", ".5", "5.", "9" * 40, "NaN", "Infinity", "0x10", "1_0", "1e", '"1e-100000"', "+"],
    ["", "true", "True", "TRUE", "false", "0", "1", "tRuE", "yes", " true", '"false"'],
    ["", "2024-02-29", "2023-02-29", " 2000-02-29 ", "1900-02-29", "9999-12-31",
     "0001-01-01", "2024-1-1", "20240101"],
    ["", "x", '""', '"a,b"', '"a ""b"""', '"a\n,b"', '"a\r\nb"', "é", '"x"y', 'x"y"', '"x" ',
     ' "x"', '"', "\0", '"\ufeff"'],
]  # fmt: skip


def test_fuzzed_lines_are_what_a_strict_reader_says():
    compare(Csv(SCHEMA), line, row_of_line)


def test_fuzzed_texts_are_what_a_strict_reader_says():
    compare(Text("name"), text, row_of_text)


def compare(
    format_: Format, make: Callable[[random.Random], bytes], row_of: Callable[[bytes], list[Any] | None]
) -> None:
    """Decode values in blocks, and look at each value by itself."""
    seed = draw_seed()
    chance = random.Random(seed)
    for size in (1, 2, 10, 100, COUNT):
        values = [make(chance) for _ in range(size)]
        decoded = find_decoder(format_).decode(pa.array(values, pa.binary()))
        found: list[Any] = [None] * size
        for at, row in zip(decoded.kept.to_pylist(), decoded.rows.to_pylist(), strict=True):
            found[at] = list(row.values())
        refused = {index for index, _ in decoded.rejects}
        assert refused.isdisjoint(decoded.kept.to_pylist())
        assert len(refused) + len(decoded.kept) == size
        for value, its in zip(values, found, strict=True):
            assert (value, its) == (value, row_of(value))


def line(chance: random.Random) -> bytes:
    """A line with some bad fields, or which was changed afterwards."""
    if chance.random() < 0.7:
        good = [["1"], ["2"], ["1.5"], ["2.5"], ["true"], ["2024-02-29"], ["x", '"a,b"', "é", ""]]
        bad = chance.randrange(len(FIELDS))
        fields = [chance.choice(FIELDS[at] if at == bad else each) for at, each in enumerate(good)]
    else:
        fields = [chance.choice(each) for each in FIELDS]
    written = ",".join(fields).encode() + chance.choice([b"", b"", b"\n", b"\r\n", b"\r"])
    return mutated(chance, written)


def text(chance: random.Random) -> bytes:
    return mutated(chance, "".join(chance.choices(PIECES, k=chance.randrange(6))).encode())


def mutated(chance: random.Random, value: bytes) -> bytes:
    kind = chance.randrange(20)
    at = chance.randrange(len(value) + 1)
    if kind == 0:
        return value[:at]
    if kind == 1:
        return value[:at] + chance.choice(PIECES).encode() + value[at:]
    if kind == 2:
        return value[:at] + bytes([chance.randrange(256)]) + value[at + 1 :]
    if kind == 3:
        return value[:at] + value[at + chance.randrange(1, 4) :]
    return value


# A quoted part, with doubled quotes, and what comes after it belong to the field; other quotes are what they are.
FIELD = re.compile(r'"((?:[^"]|"")*+)"([^,\r\n]*)|([^",\r\n][^,\r\n]*|)')


def row_of_text(value: bytes) -> list[Any] | None:
    try:
        return None if b"\0" in value else [value.decode()]
    except UnicodeDecodeError:
        return None


def row_of_line(value: bytes) -> list[Any] | None:
    """The row of a line, or None."""
    try:
        written = re.sub(r"(\r\n|\r|\n)\Z", "", value.decode().removeprefix("\ufeff"))
    except UnicodeDecodeError:
        return None
    fields: list[str | None] = []
    at = 0
    while True:
        match = FIELD.match(written, at)
        if match is None:
            return None
        quoted, after, bare = match.groups()
        fields.append((bare or None) if quoted is None else quoted.replace('""', '"') + after)
        at = match.end()
        if at == len(written):
            break
        if written[at] != ",":
            return None
        at += 1
    reads = [integer(32), integer(16), decimal, numeric, boolean, day, name]
    if len(fields) != len(reads):
        return None
    try:
        return [None if each is None else read(each) for read, each in zip(reads, fields, strict=True)]
    except ValueError:
        return None


def integer(bits: int) -> Callable[[str], int]:
    def read(written: str) -> int:
        number = int(full(r"-?[0-9]+", written.strip(" \t")))
        if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            raise ValueError
        return number

    return read


NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"


def decimal(written: str) -> Decimal:
    """At most 10 digits and 38 places may be written, and none may be lost."""
    written = full(NUMBER, written.strip(" \t"))
    mantissa, _, exponent = written.lower().lstrip("+-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    places = len(fraction) - int(exponent or 0)
    if places > 38 or len(whole.lstrip("0")) + len(fraction) + max(0, -places) > 10:
        raise ValueError
    hundredths = Decimal(written).scaleb(2)
    if hundredths != int(hundredths) or abs(hundredths) >= 10**10:
        raise ValueError
    return Decimal(int(hundredths)).scaleb(-2)


def numeric(written: str) -> str:
    """Postgres reads it, without the blanks."""
    return full(NUMBER, written.strip(" \t"))


def boolean(written: str) -> bool:
    return full("true|True|TRUE|1|false|False|FALSE|0", written) in ("true", "True", "TRUE", "1")


def day(written: str) -> date:
    return date.fromisoformat(full("[0-9]{4}-[0-9]{2}-[0-9]{2}", written.strip(" \t")))


def name(written: str) -> str:
    if "\0" in written:
        raise ValueError
    return written


def full(pattern: str, written: str) -> str:
    if not re.fullmatch(pattern, written):
        raise ValueError
    return written
