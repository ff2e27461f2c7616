"""Many values that are nearly JSON, quickly: mutations of samples, byte by byte and token by token."""

import random
from collections.abc import Iterator, Sequence

_TOKENS = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"\n", b"\t", b"\r", b"\0", b"\x1f", b"\x7f",
    b"\x80", b"\xc0\x80", b"\xc3\xa9", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xf4\x90\x80\x80", b"\xff", b"-",
    b"+", b".", b"e", b"E", b"0", b"1", b"9", b"00", b"99999999999999999999", b".5", b"1e3", b"1e-7", b"e400",
    b"null", b"true", b"false", b"nul", b"NaN", b"{}", b"[]", b'""', b'"a":1,', b',"a":1', b"\\u0000",
    b"\\u00e9", b"\\ud800", b"\\ud83d\\ude00", b"\\n", b"\\x", b"Z", b"T", b"+01:00", b"-0", b"0.1",
    b"\xef\xbb\xbf", b"2013-02-29", b"24:00",
]  # fmt: skip


def mutated(samples: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """Yield values: of each four, one is a sample and the others differ from one in one to three places."""
    pick = random.Random(seed)
    for number in range(count):
        value = pick.choice(samples)
        for _ in range(0 if number % 4 == 0 else pick.choice((1, 1, 1, 2, 3))):
            value = _mutated(value, samples, pick)
        yield value


def _mutated(value: bytes, samples: Sequence[bytes], pick: random.Random) -> bytes:
    at = pick.randrange(len(value) + 1)
    match pick.randrange(8):
        case 0:
            return value[:at] + bytes([pick.randrange(256)]) + value[at + 1 :]
        case 1 | 2:
            return value[:at] + pick.choice(_TOKENS) + value[at:]
        case 3:
            return value[:at] + pick.choice(_TOKENS) + value[at + pick.randrange(1, 6) :]
        case 4:
            return value[:at] + value[at + pick.randrange(1, 4) :]
        case 5:
            return value[:at]
        case 6:
            other = pick.choice(samples)
            return value[:at] + other[pick.randrange(len(other) + 1) :]
        case _:
            # A digit for a digit, a letter for a letter: what stays nearly right.
            near = [i for i in range(at, min(at + 40, len(value))) if value[i : i + 1].isalnum()]
            if not near:
                return value
            at = pick.choice(near)
            alike = b"0123456789" if value[at : at + 1].isdigit() else b"abcdefntuTZE"
            return value[:at] + bytes([pick.choice(alike)]) + value[at + 1 :]
