"""Decimals with more places than Arrow can look up are refused before its readers see them."""

import json
import random
from decimal import Context, Decimal

import pyarrow as pa
import pytest

from exactbatch.formats import Csv, Debezium, Json
from exactbatch.formats.decoders import find_decoder
from support.decoding import decode, reason, rows

# Arrow finds 0.00 in the first ones, and ends the process at the last ones.
TINY = [
    "1e-39",
    "1e-41",
    "1E-61",
    "-5.0e-77",
    "0e-99",
    "1e-000000000099",
    "0.0000000000000000000000000000000000001e-2",
    ".5e-50",
    "+1e-100",
    "1e-100000",
    "1e-10000000",
    "1e-2147483648",
    "1e-99999999999999999999",
]
DEBEZIUM = Debezium("id int, a numeric(10,2)")


@pytest.mark.parametrize("written", TINY)
def test_a_decimal_with_more_than_38_places_is_refused(written):
    said = f"column 'a', numeric(10,2): expected a decimal with at most 38 places, found {written[:38]}"
    bare = [] if written[0] in ".+" else [written]
    fields = [*bare, f'"{written}"', *(f'"{escaped(written, each)}"' for each in "+-.0159eE")]
    for field in fields:
        assert reason(Json("c int, a numeric(10,2)"), f'{{"b":[{{}}],"a":{field}}}'.encode()) == said
        assert "at most 38 places" in reason(Json("a numeric(38,10)[]"), f'{{"a":[1,null,{field}]}}'.encode())
    for line in (f"x,{written}", f'x,"\t{written} "'):
        assert "at most 38 places" in reason(Csv("b text, a numeric(10,2)"), line.encode())
    event = {"op": "d", "before": {"id": 1, "a": written}}
    for envelope in (event, {"payload": event}):
        decoded = find_decoder(DEBEZIUM).decode(pa.array([json.dumps(envelope).encode()], pa.binary()))
        assert "at most 38 places" in decoded.rejects[0][1]


def escaped(written: str, character: str) -> str:
    return written.replace(character, f"\\u{ord(character):04x}")


@pytest.mark.parametrize(
    ("type_", "written"),
    [
        ("numeric(38,38)", "1e-38"),
        ("numeric(10,2)", "125.00e-02"),
        ("numeric(10,2)", "100000000e-8"),
        ("numeric(38,37)", "0.00000000000000000000000000001e-8"),
        ("numeric(38,2)", "1000000000000000000000000000000000000e-36"),
    ],
)
def test_a_decimal_with_an_exponent_is_exact(type_, written):
    value = [{"a": Decimal(written)}]
    for each in (written, f'"{written}"'):
        assert rows(Json(f"a {type_}"), f'{{"a":{each}}}'.encode()) == value
        assert rows(Csv(f"a {type_}"), each.encode()) == value


def test_a_tiny_number_in_another_field_does_no_harm():
    value = rb'{"x":1e-100,"d":1e-100,"t":"1e-100 \u0030","a":1.25,"y":{"a":1e-100}}'
    row = {"d": 1e-100, "t": "1e-100 0", "a": Decimal("1.25")}
    assert rows(Json("d float8, t text, a numeric(5,2)"), value) == [row]
    assert rows(Csv("d float8, t text, a numeric(5,2)"), b"1e-100,1e-100 0,1.25") == [row]


@pytest.mark.parametrize("format_", [Json("a numeric(5,2)"), Csv("a numeric(5,2)")])
def test_a_refused_decimal_leaves_its_neighbours(format_):
    good, bad = (b'{"a":1}', b'{"a":1e-41}') if isinstance(format_, Json) else (b"1", b"1e-41")
    decoded = decode(format_, good, bad, good, b'"' + bad, good)
    assert decoded.kept.to_pylist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("type_", "written", "room"),
    [
        ("numeric(38,37)", "40", 1),
        ("numeric(38,37)", "-4e1", 1),
        ("numeric(38,37)", "4e37", 1),
        ("numeric(38,38)", "1.0", 0),
        ("numeric(38,30)", "12345678901", 8),
        ("numeric(38,18)", "340282366920938463464", 20),
        ("numeric(10,2)", "123456789.5", 8),
        ("numeric(2,0)", "1e2", 2),
    ],
)
def test_decimal_with_too_many_digits_before_point_is_refused(type_, written, room):
    words = (
        f"expected at most {room} digits before the point, found ",
        f"expected a number with at most {type_[8:].split(',')[0]} digits, found ",
    )
    event = {"op": "d", "before": {"a": written}}
    of_debezium = Debezium(f"a {type_}", decimals="string")
    for format_, value in (
        (Json(f"a {type_}"), f'{{"a":{written}}}'),
        (Json(f"a {type_}"), f'{{"a":"{written}"}}'),
        (Csv(f"b text, a {type_}"), f'x,"{written} "'),
        (Json(f"a {type_}[]"), f'{{"a":[null,0,{written}]}}'),
        (of_debezium, json.dumps(event)),
        (of_debezium, json.dumps({"payload": event})),
    ):
        said = reason(format_, value.encode())
        assert any(each in said for each in words)
        assert said.startswith("column 'a', numeric")


def test_decimals_about_two_to_the_127th_are_exact_or_refused():
    """What Arrow multiplies by 10^scale may leave its 128 bits, and come back as a number that fits."""
    chance = random.Random(5)
    for _ in range(50):
        precision = chance.choice([38, 38, chance.randint(1, 38)])
        scale = chance.randint(0, precision)
        type_ = f"numeric({precision},{scale})"
        written = [about_the_edge(chance, scale) for _ in range(8)]
        fits = [fits_in(Decimal(each), precision, scale) for each in written]
        for format_, values in (
            (Json(f"a {type_}"), [f'{{"a":{each}}}' for each in written]),
            (Json(f"a {type_}[]"), [f'{{"a":["{each}"]}}' for each in written]),
            (Csv(f"a {type_}"), written),
        ):
            decoded = decode(format_, *map(str.encode, values))
            for at, row in zip(decoded.kept.to_pylist(), decoded.rows.to_pylist(), strict=True):
                assert row["a"] in (Decimal(written[at]), [Decimal(written[at])])
                assert fits[at], (type_, written[at])
            for at, why in decoded.rejects:
                # Zeros that the type has no place for are refused, too.
                many = len(written[at].strip("-0.")) > precision or "e" in written[at] or "0" in written[at]
                assert not fits[at] or many, (type_, written[at], why)


def about_the_edge(chance: random.Random, scale: int) -> str:
    """A number that, times 10^scale, is near a multiple of 2^127, in one of the ways to write it."""
    unscaled = chance.randrange(4) * 2**127 + chance.choice([-1, 1]) * 10 ** chance.randrange(38)
    whole, fraction = divmod(abs(unscaled), 10**scale)
    sign = "-" if unscaled < 0 else ""
    places = chance.randint(0, scale)
    decimals = f".{fraction:0{scale}d}"[: places + 1] if places else ""
    if chance.random() < 0.3:
        zeros = len(str(whole)) - len(str(whole).rstrip("0")) if whole else 0
        return f"{sign}{whole // 10**zeros}e{zeros}"
    return f"{sign}{whole}{decimals}"


def fits_in(number: Decimal, precision: int, scale: int) -> bool:
    exact = Context(prec=200)
    unscaled = number.scaleb(scale, exact)
    return unscaled == unscaled.to_integral_value() and abs(unscaled) < Decimal(10) ** precision
