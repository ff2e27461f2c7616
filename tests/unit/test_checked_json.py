"""The compiled loop says of a document that jsonb takes it as it is only if that is certain."""

import json
import struct

import pytest

from exactbatch import Json
from exactbatch.compiled.json_rows import MOST_CHECKED
from support import copy_rows
from support.kernel_comparison import take

FORMAT = Json("doc jsonb, number int, other jsonb")


def fields_of(documents, checked=("doc", "other")):
    """The fields of the rows that the loop writes for documents, each with its number; None for a declined one."""
    values = [b'{"number":%d,"doc":%s}' % (at, document.encode()) for at, document in enumerate(documents)]
    taken = take(FORMAT, values, checked=checked)
    rows = (row[4:] for row in copy_rows.fields_of(taken.data))  # without the lineage
    return [None if at in taken.declined_indexes else next(rows) for at in range(len(values))]


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


@pytest.mark.parametrize("document", ['{"a":"\\u00e9"}', '{"a":1}}', '{"a":1', "[1,]", "[" * 61 + "]" * 61])
def test_what_is_declined_without_a_second_column_is_declined_with_one(document):
    assert fields_of([document]) == fields_of([document], checked=[]) == [None]


def test_a_record_whose_member_has_no_name_gives_no_value_to_the_second_column():
    taken = take(Json("doc jsonb"), [b'{"doc":{"a":1},"":1}'], checked=["doc"])
    (row,) = copy_rows.fields_of(taken.data)
    assert row[4:] == [None, b'\1{"a":1}']


def test_a_document_that_jsonb_may_find_too_large_stays_text():
    longest = '"' + "x" * (MOST_CHECKED - 2) + '"'
    within, beyond = fields_of([longest, longest[:-1] + 'x"'])
    assert within[:2] == [None, b"\1" + longest.encode()]
    assert beyond[0] == (longest[:-1] + 'x"').encode()
    assert beyond[1] is None
