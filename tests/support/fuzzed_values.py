"""Values of Kafka records, good ones and bad ones, as a seed makes them."""

import json
import random
import string
from collections.abc import Callable, Iterator
from uuid import UUID

# The columns of the fuzzed pipeline and their types; mood is an enum with LABELS.
COLUMNS = {
    "i": "int",
    "b": "bigint",
    "s": "smallint",
    "f": "float8",
    "r": "real",
    "d": "numeric(10,2)",
    "n": "numeric",
    "t": "boolean",
    "name": "text",
    "v": "varchar(5)",
    "day": "date",
    "at": "timestamptz",
    "local": "timestamp",
    "u": "uuid",
    "m": "mood",
    "j": "jsonb",
    "ints": "int[]",
    "é": "text[]",
}
LABELS = ("sad", "glad", "so so", "Ünder")

_U = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
_STRINGS = [
    '""', '" "', '"null"', r'"\u0000"', r'"a\u0000b"', r'"\\u0000"', r'"\ud800"', r'"\udc00\ud800"',
    r'"\ud83d\ude00"', r'"\uD83D\uDE00x"', r'"\ud83d\u0041"', r'"\ufffe\uffff"', '"\ufeff"', '"\u2028"',
    '"\x7f"', '"\x1f"', '"\t"', '"\0"', r'"\/\b\f\n\r\t\"\\"', r'"\x41"', r'"\u12"', r'"\u00g0"',
    r'"\U0041"', '"é"', '"e\u0301"',
    '"😀😀😀😀😀"', '"😀😀😀😀😀😀"', '"abcde"', '"abcdef"', '"abcde "', '"     "',
    '"      "', r'"\u0061bcde"', '"{}"', '"}{"', '"[1,2"', "'a'", '"\\"',
]  # fmt: skip
_NUMBERS = [
    "0", "-0", "0.0", "-0.0", "00", "01", "-01", "+1", "1.", ".5", "-", "1e", "1e+", "0x10", "1_000", "1,5",
    "--1", "1 2", "1.0", "1.5", "1e2", "1E+2", "1e-2", "10e-1", "0e0", "0e5", "0.1e1", "NaN", "-NaN", "Inf",
    "Infinity", "-Infinity", "32767", "32768", "-32768", "-32769", "2147483647", "2147483648",
    "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "18446744073709551616", "9" * 38, "9" * 39, "9" * 400, "1" + "0" * 308,
    "1" + "0" * 309, "9" * 5000, "1" + "0" * 131071, "1" + "0" * 131072, "0." + "0" * 16382 + "1",
    "0." + "0" * 16383 + "1", "0." + "1" * 100, "1e307", "1e308", "1.7976931348623157e308",
    "1.7976931348623159e308", "1e309", "1e400", "1e99999999999", "-1e400", "1e-307", "1e-323", "4.9e-324",
    "2e-324", "1e-400", "1e-9999", "1e-16383", "1e-16384", "1e-99999999999", "3.4028235e38", "3.4028236e38",
    "3.4028235677973365e38", "3.4028235677973367e38", "-3.5e38", "1.4e-45", "7e-46", "7.1e-46", "1e-46",
    "1.1754943e-38", "16777217", "1.00000005960464477540", "1.00000005960464477539", "0.1", "1.10",
    "1.1000000000", "1.25", "1.255", "99999999.99", "99999999.990", "100000000", "-99999999.99",
    "9999999999", "1e7", "1e8", "0.01", "0.001", "10e-3", "1e-38", "1e-39", "1e-41", "1e-77", "5e-85",
    "0e-41", "0e-99", "1e-1000000", "1e-2147483648", "123456789012345678901234567890",
    "123456789.123456789", "9007199254740993", "0.30000000000000004", "5e-324", "1e5", "1e16", "1e00005",
    "0" * 30 + "1",
]  # fmt: skip
_DATES = [
    "2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "0000-01-01", "0000-02-29", "0001-01-01",
    "9999-12-31", "10000-01-01", "-0001-01-01", "2024-00-10", "2024-13-01", "2024-04-31", "2024-01-00",
    "2024-1-1", "20240101", "2024/01/01", " 2024-01-01", "2024-01-01 ", "2024-01-01\n", "２024-01-01",
    "infinity", "-infinity", "now", "today", "epoch", "2024-W01-1", "2024-060", "24-01-01", "2024-01-01 BC",
    "4713-01-01", "5874897-12-31", "294276-12-31", "01.02.2024",
]  # fmt: skip
_TIMES = [
    "T", "Z", "T10", " 10", "T10Z", "T10:00", "T10:00Z", "T1000", "T100000", "T10:00:00", "T10:00:00.",
    "T10:00:00.1", "T10:00:00.123456", "T10:00:00.1234567", "T10:00:00.000000000", "T10:00:00,5",
    "t10:00:00", "T10:00:00z", "T10:00:00 Z", "T10:00:00+02", "T10:00:00+0230", "T10:00:00-02:30",
    "T10:00:00+23:59", "T10:00:00-23:59", "T10:00:00+24:00", "T10:00:00+02:60", "T10:00:00+2",
    "T10:00:00+02:00:00", "T10:00:00 UTC", "T10:00:00 Europe/Berlin", "T23:59:59.999999Z", "T24:00:00",
    "T23:59:60", "T23:60:00", "T00:00:00+23:59", "  10:00:00", "T10:00:0", "T1:00", "T10:00:00\\u002b02:00",
]  # fmt: skip
_UUIDS = [
    _U, _U.upper(), "{" + _U + "}", "{" + _U, _U + "}", _U.replace("-", ""),
    "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11", "a0eebc999c0b4ef8-bb6d6bb9bd380a11",
    "a0-eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", _U[:-1], _U + "0", _U + "-", "-" + _U, " " + _U, _U + " ",
    _U.replace("a", "g"), _U.replace("-", "--"), "urn:uuid:" + _U, "(" + _U + ")", _U.replace("-", "–"),
]  # fmt: skip
_MOODS = [
    "Sad",
    "sad ",
    " sad",
    "SAD",
    "gladd",
    "gla",
    "so  so",
    "so\\u0020so",
    "U\u0308nder",
    "ünder",
    "x" * 64,
    "1",
]
_TREES = [
    "{}", "[]", "[[]]", "[{}]", '{"":1}', '{"a":{"b":[1.10,null,true,"x"]}}',
    '{"a":1,"a":2}', '{"b":1,"aa":2,"a":[]}', "[1,]", "[,1]", "[1 2]", "{1:2}", '{"a"}', '{"a":}',
    '{"a":1,}', '{"a" 1}', "[", "{", "]", "}", "tru", "nul", "TRUE", r'{"\u0000":1}', r'["\u0000"]',
    r'["\\u0000"]', r'["\\\u0000"]', r'{"\ud800":1}', "[NaN]", "[1e400]", "[-0]", "[0.10]",
    "[1e2,1E-2,-0.0]", "[ 1 ,\t2\n,\r3 ]", "[1\u00a0]", "[\f1]", "[/**/1]", "[1]//", "[1e-16384]",
    '[" \u2028"]', "[1e-400]", "[1e-41]", '{"i":1,"i":2}', "[" * 60 + "]" * 60,
    '{"a":' * 60 + "1" + "}" * 60, "[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000, "[" * 3000,
    "[1e308]", "[1e309]", '[{"a":[]},[[1]]]',
]  # fmt: skip
_ARRAYS = [
    "[null]", "[1,null,-2]", "[null,null]", "[1.0]", "[1e1]", "[2147483647]", "[2147483648]", '["1"]',
    "[true]", "[[1]]", "[[]]", '["a",null,""]', '["a",1]', r'["\u0000"]',
    r'["\ud83d\ude00","{a,b}","\"\\"]', '["null","NULL"]', '"{1,2}"', '{"0":1}', '[" ","\u00a0"]',
    "[" + ",".join("1" * 5000) + "]", "[null,[1]]", '[{"a":1}]',
]  # fmt: skip
_TOKENS = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\n", b"\r", b"\t", b"\0", b" ", b"\x0b", b"\x0c",
    b"\xc2\xa0", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    b"\xc0\x80", b"null", b"true", b"NaN", b"-", b"1e5", b"e-41", b"\\u0000", b"\\ud800", b"//", b"/**/",
    b'"i":1,', b',"i":1', b"}{", b"}\n{", b"}]}", b"0", b"9", b"e", b"E", b".", b"+", b"\\u0065",
    b"\xe2\x82", b"'",
]  # fmt: skip
_WHOLE = [
    b"", b" ", b"\n", b"null", b"true", b"1", b'"x"', b"[]", b"[{}]", b"{}", b" {} ", b"\t\r\n{}\n",
    b"{}\x0b", b"{}\0", b"\0{}", b"\xef\xbb\xbf{}", b"{}\xef\xbb\xbf", b"\xff\xfe{\0}\0", b"{\0}\0",
    b"{}{}", b"{}\n{}", b"{},{}", b"}{", b"{", b"}", b"{{}}", b'{"i"}', b"{i:1}", b"{'i':1}", b'{"i":1,}',
    b'{,"i":1}', b'{"i":1', b'{"i":1}}', b'{"i":1}]}', b'{"x":[{}', b'{"x":"{}', b'{"\xff":1}',
    b'{"x":"\xff"}', b'{"I":1}', b'{" i":1}', b'{"i ":1}', b'{"i\\u0000":1}', b'{"":1,"":2}', b"\xff",
    b"\x00", b'{"i":1}//}', b'/**/{"i":1}', b'{"i":1;"b":2}', b'{"i"=1}', b'{"i"::1}', b"{}" * 500,
    b'{"e\xcc\x81":["a"]}', b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"[" * 100_000,
    b'{"x":' * 100_000, b"{" * 100_000 + b"}" * 100_000,
]  # fmt: skip
_LONG = 900_000  # bytes


class Fuzzer:
    """Makes one value after the other from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._good: dict[str, Callable[[], str]] = {
            "i": lambda: str(self._integer(32)),
            "b": lambda: str(self._integer(64)),
            "s": lambda: str(self._integer(16)),
            "f": lambda: repr(self._float()),
            "r": lambda: repr(self._float()) if self._random.random() < 0.8 else str(self._integer(20)),
            "d": self._decimal,
            "n": self._numeric,
            "t": lambda: self._random.choice(["true", "false"]),
            "name": lambda: self._string(30),
            "v": lambda: self._string(5),
            "day": lambda: f'"{self._day()}"',
            "at": self._moment,
            "local": self._moment,
            "u": lambda: f'"{UUID(int=self._random.getrandbits(128))}"',
            "m": lambda: f'"{self._random.choice(LABELS)}"',
            "j": lambda: self._tree(3),
            "ints": lambda: self._array(lambda: str(self._integer(32))),
            "é": lambda: self._array(lambda: self._string(6)),
        }
        quoted = {
            "day": _DATES,
            "at": [day + time for day in _DATES[:8] for time in ["", *_TIMES]] + _DATES,
            "u": _UUIDS,
            "m": _MOODS,
            "d": _NUMBERS,
            "n": _NUMBERS,
        }
        self._nasty = {
            name: [json.dumps(each, ensure_ascii=False).replace("\\\\u", "\\u") for each in cases]
            for name, cases in quoted.items()
        }
        self._nasty["local"] = self._nasty["at"]
        for name, more in (
            ("j", _TREES),
            ("ints", _ARRAYS),
            ("é", _ARRAYS),
            ("name", _STRINGS),
            ("v", _STRINGS),
        ):
            self._nasty[name] = more
        for name in "ibsfrdn":
            self._nasty[name] = self._nasty.get(name, []) + _NUMBERS
        self._any = [
            *_STRINGS,
            *_NUMBERS,
            *_TREES,
            *_ARRAYS,
            "true",
            "false",
            "null",
            *self._nasty["at"],
            *self._nasty["u"],
        ]

    def values(self, count: int, *, fuzzed: float, long: int) -> Iterator[bytes | None]:
        """Yield values: about a given share is fuzzed, some are 900 kB long, and one in a hundred is null."""
        at = set(self._random.sample(range(count), long))
        last = b"{}"
        for number in range(count):
            if number in at:
                yield self._long()
                continue
            chance = self._random.random()
            if chance < fuzzed:
                yield self._mutated(last)
            elif chance < fuzzed + 0.01:
                yield None
            else:
                last = self._object()
                yield last

    def _object(self, **given: str) -> bytes:
        """A good value, but for the fields that are given."""
        names = [name for name in self._good if self._random.random() < 0.8]
        fields = {name: given.get(name) or self._good[name]() for name in [*names, *given]}
        if self._random.random() < 0.3:
            fields["other"] = self._tree(2)
        order = list(fields)
        self._random.shuffle(order)
        colon, comma = self._random.choice([(":", ","), (": ", ", "), (" :\t", "\r\n,")])
        return ("{" + comma.join(f'"{name}"{colon}{fields[name]}' for name in order) + "}").encode()

    def _mutated(self, last: bytes) -> bytes:
        pick = self._random.choice
        kind = self._random.randrange(16)
        if kind == 0:
            return pick(_WHOLE)
        if kind < 8:
            name = pick(list(self._nasty))
            return self._object(**{name: pick(self._nasty[name])})
        if kind < 10:
            return self._object(**{pick([*self._good, "other"]): pick(self._any)})
        value = self._object()
        at = self._random.randrange(len(value))
        if kind == 10:
            return value[:at]
        if kind == 11:
            until = at + self._random.randrange(1, 9)
            return value[:at] + value[until:]
        if kind == 12:
            return value[:at] + last[self._random.randrange(len(last)) :]
        if kind == 13:
            return value[:at] + bytes([value[at] ^ (1 << self._random.randrange(8))]) + value[at + 1 :]
        if kind == 14:
            return value[:at] + pick(_TOKENS) + value[at:]
        return value[:-1] + b',"' + self._name().encode() + b'":' + pick(["null", "1", '"x"']).encode() + b"}"

    def _name(self) -> str:
        """The name of a column, maybe with an escape."""
        name = self._random.choice(list(COLUMNS))
        return "".join(f"\\u{ord(each):04x}" if self._random.random() < 0.3 else each for each in name)

    def _long(self) -> bytes:
        name = self._random.choice(["name", "v", "j", "other", "u", "n", "d", "ints", "é", "at", "f"])
        text = self._random.choice(
            [
                f'"{"x" * _LONG}"',
                f'"{"é" * (_LONG // 2)}"',
                '"' + r"\u00e9" * (_LONG // 6) + '"',
                f'"{"x" * _LONG}',
                "9" * 100_000,
                f"[{'1,' * (_LONG // 2)}1]",
                f'["{"x" * _LONG}"]',
                "[" + '{"a":[1.5,"x"]},' * (_LONG // 17) + "null]",
                "{" + ",".join(f'"k{number}":{number}' for number in range(60_000)) + "}",
            ]
        )
        return self._object(**{name: text})

    def _integer(self, bits: int) -> int:
        return self._random.getrandbits(self._random.randrange(1, bits)) * self._random.choice((1, -1))

    def _float(self) -> float:
        return float(self._random.uniform(-1, 1) * 10 ** self._random.randrange(-30, 30))

    def _decimal(self) -> str:
        number = f"{self._random.uniform(-1, 1) * 10 ** self._random.randrange(8):.2f}"
        return self._random.choice([number, f'"{number}"', str(self._integer(24))])

    def _numeric(self) -> str:
        digits = str(self._random.getrandbits(self._random.randrange(1, 200)))
        number = (
            self._random.choice(["", "-"])
            + digits
            + self._random.choice(["", ".5", ".10", "e20", "e-20", ".7E3"])
        )
        return self._random.choice([number, f'"{number}"'])

    def _string(self, most: int) -> str:
        length = self._random.randrange(most + 1)
        text = "".join(self._random.choice(string.printable[:95] + "äß€日😀\n\t") for _ in range(length))
        return json.dumps(text, ensure_ascii=self._random.random() < 0.5)

    def _day(self) -> str:
        year, month, day = (self._random.randrange(*each) for each in ((10_000,), (1, 13), (1, 29)))
        return f"{year:04}-{month:02}-{day:02}"

    def _moment(self) -> str:
        hour, minute = self._random.randrange(24), self._random.randrange(60)
        second = self._random.choice(
            ["", f":{minute:02}", f":{minute:02}.{self._random.randrange(10**6):06}"]
        )
        zone = self._random.choice(["", "Z", "+02:00", "-0930", "+05"])
        return f'"{self._day()}{self._random.choice("T ")}{hour:02}:{minute:02}{second}{zone}"'

    def _array(self, element: Callable[[], str]) -> str:
        return (
            "["
            + ",".join(
                "null" if self._random.random() < 0.2 else element() for _ in range(self._random.randrange(5))
            )
            + "]"
        )

    def _tree(self, depth: int) -> str:
        kind = self._random.randrange(8 if depth else 5)
        if kind < 5:
            return (self._numeric().strip('"'), repr(self._float()), self._string(9), "null", "true")[kind]
        inner = [self._tree(depth - 1) for _ in range(self._random.randrange(4))]
        if kind == 5:
            return "[" + ",".join(inner) + "]"
        return "{" + ",".join(f"{self._string(3)}:{each}" for each in inner) + "}"
