"""The compiled loop says of a document that jsonb takes it as it is only if that is certain."""

import json
import struct
from itertools import pairwise

import numpy as np
import pytest

from exactbatch.columns import Column
from exactbatch.compiled.json_kernel import JsonKernel
from exactbatch.compiled.json_rows import MOST_CHECKED
from exactbatch.compiled.row_frame import NO_FRAME

COLUMNS = [Column("doc", "jsonb"), Column("number", "integer"), Column("other", "jsonb")]


def fields_of(documents, checked=("doc", "other")):
    """The fields of the rows that the loop writes for documents, each with its number; None for a declined one."""
    kernel = JsonKernel(COLUMNS, {}, NO_FRAME, checked=checked)
    values = [b'{"number":%d,"doc":%s}' % (at, document.encode()) for at, document in enumerate(documents)]
    sizes = np.array([len(value) for value in values], np.uint64)
    ends = np.cumsum(sizes, dtype=np.uint64)
    taken = kernel.take(
        np.frombuffer(b"".join(values), np.uint8),
        ends - sizes,
        ends,
        np.ones(len(values), np.bool_),
        np.zeros(len(values), np.int64),
        np.zeros(len(values), np.int64),
    )
    starts = [0, *taken.ends.tolist()]
    rows = iter([_fields(taken.data[start:end]) for start, end in pairwise(starts)])
    return [None if at in taken.declined else next(rows) for at in range(len(values))]


def _fields(row):
    fields, at = [], 0
    while at < len(row):
        (length,) = struct.unpack_from(">i", row, at)
        fields.append(None if length < 0 else row[at + 4 : at + 4 + length])
        at += 4 + max(0, length)
    return fields


def names(count, start=0):
    return json.dumps({f"name {number}": number for number in range(start, start + count)})


CHECKED = [
    "{}", "[]", "1", "-0", "1e100", "1E-100", "true", "false", '"text"', '"\\n \\" \\\\"', '"é"', '{"":1}',
    '{"a":1,"b":2}', '{"a":{"a":{"a":1}},"b":{"a":1}}', '[{"a":1},{"a":1}]', '{"a":[{"b":1},{"b":2}],"b":1}',
    '{"a":"a","aa":"a"}', '{ "a" : [ 1 , { "c" : null } ] }', '{"é":1,"è":2}', '{"a":{},"b":[{}],"c":{}}',
    "[" * 60 + "]" * 60, '{"a":' * 60 + "1" + "}" * 60, names(500), names(511), '{"b":{"c":1},"c":{"c":1}}',
    '{"a":' + names(250) + ',"b":' + names(250) + ',"c":{"d":' + names(450) + "}}",
]  # fmt: skip
AS_TEXT = [
    '{"a":1,"a":1}', '{"a":1,"b":2,"a":3}', '[{"a":1},{"b":1,"b":1}]', '{"a":{"b":1,"c":{},"b":1}}',
    '{"a":{"b":1},"b":2,"c":3,"b":4}', '{"a":[[{"b":[{"b":1}],"b":1}]]}', '{"a\\n":1}', '{"a":{"\\"":1}}',
    '{"":1,"":2}', '{"a":{"x":1,"x":2},"b":[{}]}', names(512), '{"a":{"b":' + names(509) + "}}",
    '{"é":1,"é":2}', names(511)[:-1] + ',"last":{}}', names(510)[:-1] + ',"last":{}}',
]  # fmt: skip


@pytest.mark.parametrize("document", CHECKED)
def test_a_document_that_jsonb_takes_goes_into_the_second_column(document):
    """Beside others, so that memory of names is used before."""
    _, row, _ = fields_of(["{}", document, '{"a":1}'])
    assert row == [None, b"\1" + document.encode(), struct.pack(">i", 1), None, None]


@pytest.mark.parametrize("document", AS_TEXT)
def test_a_document_that_it_might_refuse_or_change_stays_text(document):
    after = '{"a":1}'
    _, row, last = fields_of([names(300), document, after])
    assert row == [document.encode(), None, struct.pack(">i", 1), None, None]
    assert last[:2] == [None, b"\1" + after.encode()]


def test_null_is_null_in_both_and_missing_members_too():
    assert fields_of(["null"]) == [[None, None, struct.pack(">i", 0), None, None]]


def test_a_column_that_is_not_checked_stays_text():
    assert fields_of(['{"a":1}'], checked=["other"]) == [[b'{"a":1}', struct.pack(">i", 0), None, None]]


@pytest.mark.parametrize("document", ['{"doc":1}', '{"a":"\\u00e9"}', '{"a":1}}', '{"a":1', "[1,]"])
def test_what_is_declined_without_a_second_column_is_declined_with_one(document):
    assert (fields_of([document]) == [None]) == (fields_of([document], checked=[]) == [None])


def test_a_record_whose_member_has_no_name_gives_no_value_to_the_second_column():
    kernel = JsonKernel([Column("doc", "jsonb")], {}, NO_FRAME, checked=["doc"])
    value = np.frombuffer(b'{"doc":{"a":1},"":1}', np.uint8)
    taken = kernel.take(
        value,
        np.zeros(1, np.uint64),
        np.array([len(value)], np.uint64),
        np.ones(1, np.bool_),
        *np.zeros((2, 1), np.int64),
    )
    assert _fields(taken.data) == [None, b'\1{"a":1}']


def test_a_document_that_jsonb_may_find_too_large_stays_text():
    longest = '"' + "x" * (MOST_CHECKED - 2) + '"'
    within, beyond = fields_of([longest, longest[:-1] + 'x"'])
    assert within[:2] == [None, b"\1" + longest.encode()]
    assert beyond[0] == (longest[:-1] + 'x"').encode()
    assert beyond[1] is None
