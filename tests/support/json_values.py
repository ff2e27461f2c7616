"""Strategies for JSON objects and for values that are nearly JSON."""

from hypothesis import strategies as st

# fmt: off
FIELDS = st.sampled_from(["a", "b", "c", "d", "e", "other"])
LITERALS = st.sampled_from([
    "1", "-3", "1.5", "2147483648", "1e39", "123456.7", "null", "true", "[]", "{}", '{"a":1}', "NaN", '"x"',
    '"1.25"', '"\\u0000"', '"\\ud800"', '"}{"', '"é"', '"2024-02-29"', '"2024-02-30"', '"2024-02-29T10:00Z"',
])
BROKEN = st.sampled_from([
    b"", b"null", b"{", b"}", b"{}{}", b"{}\n{}", b'{"a":1}{"a":2}', b'{"a":1},{"a":2}', b'{"a":1}\0}', b"{}]}",
    b'{"x":[{}', b'{"x":"{}', b'{}"}', b'{"x":{}', b"{}}", b'{"a":1}}', b'{"a":1}{"a":2}\0}', b'{"a":1,}', b"[{}]",
    b"\xff", b'{"other":"\xff"}', b" {} ", b'{"a":2}\n', b'\n{"b":"x"}', b"\xef\xbb\xbf{}", b"{}\x0b",
])
# fmt: on
OBJECTS = st.lists(st.tuples(FIELDS, LITERALS), max_size=4).map(
    lambda fields: ("{" + ",".join(f'"{name}":{literal}' for name, literal in fields) + "}").encode()
)
PIECES = st.lists(
    st.sampled_from(["{", "}", "[", "]", '"a"', ":", ",", "1", "\n", '"', "\0"]), max_size=8
).map(lambda pieces: "".join(pieces).encode())
VALUES = st.lists(OBJECTS | OBJECTS | BROKEN | PIECES | st.none() | st.binary(max_size=5), max_size=12)
