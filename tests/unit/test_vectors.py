"""Arrays for pgvector's types become text of exactly the numbers that the types hold; JSON becomes hstore's text."""

import json
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactbatch import Debezium, Json
from exactbatch.formats.json.raw_fields import vectors_of_json
from support.decoding import decode, reason

FORMAT = Json("id int, v public.vector, h extensions.halfvec, vs public.vector[]")
NUMBER = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1e38, 1e38).map(repr),
    st.integers(-(10**30), 10**30).map(str),
    st.decimals(-(10**9), 10**9, allow_nan=False, allow_infinity=False).map(str),
)


@given(st.lists(st.none() | st.lists(NUMBER, max_size=4), max_size=6))
def test_each_number_is_the_nearest_real(vectors):
    texts = [None if each is None else f"[{','.join(each)}]" for each in vectors]
    for written, found in zip(
        vectors, vectors_of_json(pa.array(texts, pa.string()), "a.vector"), strict=True
    ):
        if written is None:
            assert not found.is_valid
            continue
        assert found.as_py()[0] + found.as_py()[-1] == "[]"
        numbers = [float(each) for each in found.as_py()[1:-1].split(",") if each]
        nearest = pa.array(written, pa.string()).cast(pa.float32()).to_pylist()
        assert numbers == nearest
        assert [struct.unpack("<f", struct.pack("<f", number))[0] for number in numbers] == numbers


@pytest.mark.parametrize("written", ["0.1", "65519.99", "-65504", "6e-8", "2.9e-8", "2049", "1"])
def test_a_halfvec_has_the_nearest_half(written):
    [row] = decode(FORMAT, f'{{"h":[{written}]}}'.encode()).rows.to_pylist()
    assert float(row["h"][1:-1]) == float(np.float16(np.float32(written)))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('{"v":[1,null]}', "column 'v', public.vector: expected an array of numbers, found null in it"),
        ('{"v":[[1]]}', "column 'v', public.vector: expected an array of numbers, found array in it"),
        ('{"v":["1"]}', "column 'v', public.vector: expected an array of numbers, found string in it"),
        ('{"v":[true]}', "column 'v', public.vector: expected an array of numbers, found boolean in it"),
        ('{"v":{}}', "column 'v', public.vector: expected an array of numbers, found object"),
        ('{"v":7}', "column 'v', public.vector: expected an array of numbers, found number"),
        (
            '{"v":[1,3.5e38]}',
            "column 'v', public.vector: expected numbers in the range of the type, found 3.5e38",
        ),
        (
            '{"h":[65520]}',
            "column 'h', extensions.halfvec: expected numbers in the range of the type, found 65520",
        ),
    ],
)
def test_what_is_no_vector_is_refused(value, said):
    assert reason(FORMAT, value.encode()) == said


def test_text_and_arrays_of_vectors():
    decoded = decode(FORMAT, rb'{"v":"[1,\u0032]","vs":[[1],null,"[2]"]}', b'{"v":null,"vs":null}', b"{}")
    assert [(row["v"], row["vs"]) for row in decoded.rows.to_pylist()] == [
        ("[1,2]", ["[1]", None, "[2]"]),
        (None, None),
        (None, None),
    ]


TEXTS = st.dictionaries(st.text(), st.none() | st.text(), max_size=4)


@given(TEXTS)
def test_json_of_debezium_becomes_text_of_hstore(members):
    event = {"op": "c", "after": {"h": json.dumps(members)}}
    decoded = decode(Debezium("h public.hstore"), json.dumps(event).encode())
    if any("\0" in each for pair in members.items() for each in pair if each is not None):
        assert "U+0000" in decoded.rejects[0][1]
        return
    [row] = decoded.rows.to_pylist()
    found = row["h"]
    assert found.count("=>") >= len(members)
    for key, value in members.items():
        quoted = ['"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in (key, value or "")]
        assert f"{quoted[0]}=>{'NULL' if value is None else quoted[1]}" in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a":"1","a":"2"}', "a key occurs twice in the object"),
        ('{"a":1}', "the value of the key 'a' is neither text nor null"),
        ('{"b":"x","a":{"c":"d"}}', "the value of the key 'a' is neither text nor null"),
        ('{"a":"b"', "expected hstore's text, or a JSON object: "),
    ],
)
def test_json_that_hstore_cannot_hold_is_refused(text, said):
    assert said in reason(Debezium("h public.hstore"), json.dumps({"op": "c", "after": {"h": text}}).encode())
