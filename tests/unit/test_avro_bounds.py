"""A deep value of a recursive Avro schema is a reject: fastavro's reader is in C, and would overflow its stack."""

import itertools
import json
import subprocess
import sys

import fastavro
import pytest

from exactbatch.formats import Avro
from exactbatch.formats.avro.bodies import bounded
from exactbatch.formats.json.raw_fields import TOO_DEEP
from support.decoding import reason, rows

LIST = {
    "type": "record",
    "name": "N",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "N"]}],
}
TREE = {
    "type": "record",
    "name": "a.T",
    "fields": [
        {"name": "v", "type": "int"},
        {"name": "labels", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "children", "type": {"type": "array", "items": {"type": "map", "values": "T"}}},
    ],
}
ENDLESS = {"type": "record", "name": "E", "fields": [{"name": "v", "type": "E"}]}
LEAF = b"\x02\0\0"  # v is 1, without labels and children


def record_of(name, *types):
    fields = [{"name": f"f{number}", "type": type_} for number, type_ in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def chain(levels):
    return b"\x02\x02" * levels + b"\x02\0"


def tree(levels):
    """Each level is a record, an array and a map."""
    return b"\x02\0\x02\x02\x02k" * levels + LEAF + b"\0\0" * levels


CODE = """
import json, sys
import pyarrow as pa
from exactbatch.formats import Avro
from exactbatch.formats.decoders import find_decoder
schema, columns, values = json.load(sys.stdin)
bodies = pa.array([bytes.fromhex(value) for value in values], pa.binary())
decoded = find_decoder(Avro(schema, fields=columns)).decode(bodies)
print(json.dumps([len(decoded.rows), decoded.rejects]))
"""


def outcome(schema, columns, *values):
    """The number of rows, and the rejects, from a process of its own: a crash would be that of this one."""
    given = json.dumps([json.dumps(schema), columns, [value.hex() for value in values]])
    done = subprocess.run(
        [sys.executable, "-c", CODE], input=given, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return json.loads(done.stdout)


@pytest.mark.parametrize("levels", [2_000, 100_000])
@pytest.mark.parametrize("columns", ["v int", "v int, next jsonb"])
def test_a_deep_record_is_a_reject_and_crashes_nothing(levels, columns):
    assert outcome(LIST, columns, chain(levels), chain(3)) == [1, [[0, TOO_DEEP]]]


def test_a_deep_tree_and_a_type_that_contains_itself_without_end_are_rejects():
    assert outcome(TREE, "v int", tree(2_000), tree(3)) == [1, [[0, TOO_DEEP]]]
    assert outcome(ENDLESS, "v jsonb", b"") == [0, [[0, TOO_DEEP]]]


def test_a_record_may_be_in_two_circles():
    """The deep value goes round the inner one only."""
    inner = record_of("I", ["null", "I"], ["null", "O"])

    def value(levels):
        return b"\x02" * levels + b"\0" * (levels + 1)

    assert outcome(record_of("O", ["null", inner]), "f0 jsonb", value(100_000), value(3)) == [
        1,
        [[0, TOO_DEEP]],
    ]


AUDIT = """
import json, sys
import exactbatch.audit.rowless as rowless
schema, value = json.load(sys.stdin)
rowless.fetch_schema = lambda *_: schema
print(rowless.RowlessEvents("http://registry", {})._is_rowless(bytes.fromhex(value)))
"""


def test_the_auditor_does_not_crash_either():
    given = json.dumps([json.dumps(LIST), (b"\0\0\0\0\1" + chain(100_000)).hex()])
    done = subprocess.run(
        [sys.executable, "-c", AUDIT], input=given, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr[-2000:]


def test_nesting_below_the_limit_is_a_row():
    avro = Avro(json.dumps(LIST))
    value = None
    for _ in range(800):
        value = {"v": 1, "next": value}
    for row in rows(avro, *[chain(800)] * 3):
        assert row == {"v": 1, "next": json.dumps(value, separators=(",", ":"))}
    tree_row = {"v": 1, "labels": "{}", "children": '[{"k":{"v":1,"labels":{},"children":[]}}]'}
    assert rows(Avro(json.dumps(TREE)), tree(1)) == [tree_row]
    assert len(rows(Avro(json.dumps(TREE)), tree(290), tree(290))) == 2


def test_the_reason_of_a_body_needs_few_schemas(monkeypatch):
    """The schemas of all first fields together grow with the square of their number."""
    fields = [{"name": f"f{number}", "type": "string"} for number in range(500)]
    form = Avro(json.dumps({"type": "record", "name": "V", "fields": fields}), fields="f300 text")
    body = b"\0" * 300 + b"\x02\xff" + b"\0" * 199
    parsed, parse = [], fastavro.parse_schema
    monkeypatch.setattr(fastavro, "parse_schema", lambda schema: parsed.append(schema) or parse(schema))
    assert reason(form, body) == "column 'f300', text: expected text in UTF-8, found other bytes"
    assert len(parsed) < 20


def test_the_work_for_a_schema_grows_only_with_its_size():
    def calls(records):
        fields = [
            record_of(f"R{number}", ["null", f"R{max(number - 1, 0)}", f"R{number}"])
            for number in range(records)
        ]
        schema = fastavro.parse_schema(record_of("V", *fields))
        counted = itertools.count()
        sys.setprofile(lambda *_: next(counted))
        try:
            bounded(schema)
        finally:
            sys.setprofile(None)
        return next(counted)

    assert calls(8_000) < 9 * calls(1_000)  # 1 MB and 0.1 MB
