"""JSON objects as producers write them, for the columns of a schema."""

import json
import random
from collections.abc import Callable, Iterator, Sequence

from exactbatch.columns import Column

_MOMENTS = [
    "2013-01-01T12:00:00Z", "2013-12-31 23:59:59.999999", "1969-12-31T23:59:59.5+01:30", "2000-02-29T00:00",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "2024-02-29", "1950-06-30T01:02:03.000004-0930",
    "2013-01-01T12:00:00+02", "2013-06-01T00:00:00.123Z", "1999-12-31T23:59:59-00:00",
]  # fmt: skip
_TEXTS = [
    "",
    "a",
    "JFK",
    "é",
    "日本",
    "😀",
    "line\nbreak",
    'quo"te',
    "back\\slash",
    "tab\t",
    "\x7f",
    "\u2028",
]
_EXTRA = [
    '"zz":1', '"zz":{"a":[1,2,{"b":"}"}],"c":null}', '"zz":"x"', '"zz":[]', '"zz":{}',
    '"é":-0.5e-3', '"zz":[1.5,true]', '"zz":12345678901234567890123', '"zz":"\\u00e9\\n"', '"":null',
    '"zz":false,"zz":true',
]  # fmt: skip


class PlausibleValues:
    """Makes values from a seed; `epoch` is that of Json."""

    def __init__(self, columns: Sequence[Column], epoch: dict[str, str], seed: int) -> None:
        self._pick = random.Random(seed)
        self._columns, self._epoch = columns, epoch

    def values(self, count: int) -> Iterator[bytes]:
        """Yield objects: most with all fields in their order, some with others, in another order, or with spaces."""
        pick = self._pick
        for _ in range(count):
            fields = [
                f"{json.dumps(column.name, ensure_ascii=False)}:{self._field(column)}"
                for column in self._columns
                if pick.random() < 0.95
            ]
            if pick.random() < 0.2:
                fields.insert(pick.randrange(len(fields) + 1), pick.choice(_EXTRA))
            if pick.random() < 0.2:
                pick.shuffle(fields)
            space = pick.choice(["", "", "", " ", "\r\n\t"])
            yield f"{space}{{{space}{f'{space},{space}'.join(fields)}{space}}}{space}".encode()

    def _field(self, column: Column) -> str:
        if self._pick.random() < 0.05:
            return "null"
        if unit := self._epoch.get(column.name):
            return str(self._epoch_number(unit))
        type_, _, modifier = column.type.partition("(")
        if type_ == "numeric" and modifier and column.staged_type != "text":
            precision, scale = map(int, modifier.strip(")").split(","))
            return self._decimal(precision, scale)
        return _WRITTEN.get(type_, PlausibleValues._text)(self)

    def _integer(self, bits: int) -> str:
        number = self._pick.getrandbits(self._pick.randrange(1, bits))
        return str(self._pick.choice([number, -number or 1, 2 ** (bits - 1) - 1, 1 - 2 ** (bits - 1)]))

    def _epoch_number(self, unit: str) -> int:
        seconds = self._pick.choice([0, -1, self._pick.randrange(-(10**9), 4 * 10**9)])
        per_second = {"d": 1 / 86400, "s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
        return int(seconds * per_second) + self._pick.randrange(-5, 5)

    def _float(self) -> str:
        pick = self._pick
        return pick.choice(
            [
                "0", "-0.0", "1.5", "0.1", "-123.456", "16777217", "3.4028235e38", "1e-7", "1e22", "1E+5", "2.5e-20",
                "0.30000001192", "8388609.5", "9007199254740993", "1.17549435e-38", "1e23",
                f"{pick.uniform(-180, 180):.6f}", f"{pick.uniform(-1, 1) * 10 ** pick.randrange(-20, 20):.9g}",
                repr(pick.random()), str(pick.getrandbits(60)), f"{pick.getrandbits(53)}e-{pick.randrange(25)}",
            ]
        )  # fmt: skip

    def _decimal(self, precision: int, scale: int) -> str:
        """A number that nearly always fits."""
        pick = self._pick
        before = str(pick.randrange(10 ** pick.randrange(precision - scale + 1)))
        places = pick.choice([0, scale, scale, min(2, scale), pick.randrange(scale + 1), scale + 1])
        after = f".{pick.randrange(10**places):0{places}}" if places else ""
        return pick.choice(["", "", "-"]) + before + after

    def _numeric(self) -> str:
        return self._pick.choice([self._decimal(12, 3), "1e20", "-1.5E-10", str(self._pick.getrandbits(150))])

    def _boolean(self) -> str:
        return self._pick.choice(["true", "false"])

    def _text(self) -> str:
        return json.dumps("".join(self._pick.choices(_TEXTS, k=2)), ensure_ascii=self._pick.random() < 0.5)

    def _json(self) -> str:
        nested = {"a": [1, 2.50, None, {"b": self._pick.choice(_TEXTS)}], "c": self._pick.getrandbits(9)}
        return self._pick.choice(
            [json.dumps(nested, ensure_ascii=False), "[]", '"x"', "-1.50", "true", '{ "a" : 1 }']
        )

    def _moment(self) -> str:
        return f'"{self._pick.choice(_MOMENTS)}"'

    def _date(self) -> str:
        return f'"{self._pick.choice(_MOMENTS)[:10]}"'


_WRITTEN: dict[str, Callable[[PlausibleValues], str]] = {
    "smallint": lambda self: self._integer(16),
    "integer": lambda self: self._integer(32),
    "bigint": lambda self: self._integer(64),
    "real": PlausibleValues._float,
    "double precision": PlausibleValues._float,
    "numeric": PlausibleValues._numeric,
    "boolean": PlausibleValues._boolean,
    "json": PlausibleValues._json,
    "jsonb": PlausibleValues._json,
    "timestamp with time zone": PlausibleValues._moment,
    "timestamp without time zone": PlausibleValues._moment,
    "date": PlausibleValues._date,
}
