"""An audit of values finds a wrong value of each type, and rows of records that only a lenient reader accepts."""

import pytest

from exactbatch import Json, Pipeline
from exactbatch.audit.audit_result import AuditReport
from exactbatch.audit.run_audit import audit
from exactbatch.sinks.writers import find_writer
from support.audited_target import findings
from support.batch_runner import BatchRunner

SCHEMA = (
    "s smallint, i int, b bigint, r real, f float8, t boolean, name text, other text, day date, at timestamptz, "
    "local timestamp"
)
# Of each column: a value as the producer writes it, and other values to plant in its place.
PLANTED = {
    "s": ("-7", ["7", "-70", "0"]),
    "i": ("2147483647", ["214748364", "-2147483648"]),
    "b": ("9007199254740993", ["9007199254740992", "-9007199254740993"]),
    "r": ("0.1", ["0.2", "'-0.1'", "'NaN'", "0.10000002"]),
    "f": ("0.1", ["0.10000000000000002", "'Infinity'", "'NaN'", "'-0'"]),
    "t": ("true", ["false"]),
    "name": ('"Müller"', ["'Muller'", "'MÜLLER'", "'Müller '", "''", "'null'", "e'M\\u00fcller\\n'", "'\"Müller\"'"]),
    "other": ('"a"', ["'a\",\"x\":\"b'", "'a\\'", "e'a\\x1f'", "'b'"]),
    "day": ('"2026-01-31"', ["'2026-02-01'", "'20260-01-31'", "'2026-01-31 BC'", "'infinity'"]),
    "at": ('"2026-01-31T10:00:00Z"', ["'2026-01-31 11:00:00Z'", "'2026-01-31 10:00:00.5Z'", "'infinity'"]),
    "local": ('"2026-01-31T10:00:00.250Z"', ["'2026-01-31 10:00:00.25001'", "'2026-01-31 11:00:00.25'"]),
}  # fmt: skip
LINEAGE = "kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, batch_id"


def flat(**given: str) -> bytes:
    fields = {name: value for name, (value, _) in PLANTED.items()} | given
    return ("{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}").encode()


def audited(world: BatchRunner, pipeline: Pipeline) -> AuditReport:
    return audit(pipeline, world.settings, values=True)


def test_a_wrong_value_of_each_type_is_found(world, make_topic, make_pipeline):
    """Each is at an offset of its own, and one audit has to find all of them."""
    topic = make_topic()
    planted = [(name, other) for name, (_, others) in PLANTED.items() for other in [*others, "null"]]
    plain, columns = len(planted) + 10, len(PLANTED)
    nulls = flat(**dict.fromkeys(PLANTED, "null"))
    escaped = flat(name=r'"a\"b\u00fc"')
    others = [flat(i=str(number)) for number in range(1000)]
    topic.produce(*[flat()] * plain, *[nulls] * columns, *[escaped] * columns, *others)
    pipeline = make_pipeline(topic, value=Json(SCHEMA))
    assert world.run(pipeline).batch.rows == plain + 2 * columns + 1000
    assert findings(audited(world, pipeline)) == {}
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    world.execute(f"create table kept as table {table}")
    changes = [(10 + at, name, other) for at, (name, other) in enumerate(planted)]
    for at, (name, (_, [other, *_])) in enumerate(PLANTED.items()):
        changes += [(plain + at, name, other), (plain + columns + at, name, other)]
    for offset, name, other in changes:
        world.execute(f"update {table} set {name} = {other} where kafka_offset = {offset}")
    found = findings(audited(world, pipeline))
    assert found == {"changed": (len(changes), list(range(10, 20)))}
    world.execute(f"truncate {table}; insert into {table} table kept")
    for change in ("kafka_timestamp = kafka_timestamp + interval '1 us'", "kafka_timestamp = null"):
        world.execute(f"update {table} set {change} where kafka_offset = 6")
        assert findings(audited(world, pipeline)) == {"changed": (1, [6])}
        world.execute(f"truncate {table}; insert into {table} table kept")
    # A second row of one record, which has another value.
    world.execute(f"insert into {table} select * from {table} where kafka_offset = 3")
    world.execute(
        f"update {table} set i = 0 where ctid = (select max(ctid) from {table} where kafka_offset = 3)"
    )
    found = findings(audited(world, pipeline))
    assert found["changed"] == (1, [3])
    assert found["duplicated"] == (1, [3])


# Records that are rejects, and what a lenient reader would have made of them: the row is planted.
LENIENT = [
    (b'{"i":1,"i":1,"name":"a"}', "1, 'a'"),
    (b'{"i":1.0,"name":"a"}', "1, 'a'"),
    (b'{"i":1e3,"name":"a"}', "1000, 'a'"),
    (b'{"i":"1","name":"a"}', "1, 'a'"),
    (b'{"i":01,"name":"a"}', "1, 'a'"),
    (b'{"i":+1,"name":"a"}', "1, 'a'"),
    (b'{"i":1,"name":2}', "1, '2'"),
    (b'{"i":1,"name":a}', "1, 'a'"),
    (b'{"i":1,"name":"a\nb"}', "1, e'a\\nb'"),
    (b'{"i":1,"name":"a\tb"}', "1, e'a\\tb'"),
    (b'{"i":1,"name":"a"b"}', "1, 'a\"b'"),
    (b'{"i":1,"name":"a","name":"b"}', '1, \'a","name":"b\''),
    (b'{"i":1,"name":"a"}{"i":1,"name":"a"}', "1, 'a'"),
    (b'{"i":1,"name":"a"},', "1, 'a'"),
    (b'{"i":1,"name":"a",}', "1, 'a'"),
    (b'{"i":1,"name":"a"', "1, 'a'"),
    (b'\xef\xbb\xbf\xef\xbb\xbf{"i":1,"name":"a"}', "1, 'a'"),
    (b'{"i":1,"name":"a"}\0', "1, 'a'"),
    (b'{"i":1,"name":"\xff"}', "1, e'\\ufffd'"),
    (b'{"i":1,"name":"\\ud800"}', "1, '\\ud800'"),
    (b'{"i":2147483648,"name":"a"}', "2147483647, 'a'"),
    (b'{"i":1,"name":"a"}//', "1, 'a'"),
    (b'{"i":1,"name":\'a\'}', "1, 'a'"),
    (b"[1]", "1, null"),
    (b"", "null, null"),
]


@pytest.mark.parametrize("others", [1, 200], ids=["mostly bad", "mostly good"])
def test_a_row_of_a_record_that_only_a_lenient_reader_accepts_is_found(
    world, make_topic, make_pipeline, others
):
    topic = make_topic()
    good = [b'{"i":%d,"name":"x"}' % number for number in range(others)]
    topic.produce(*good, *(value for value, _ in LENIENT), timestamp=1_767_225_600_000)
    pipeline = make_pipeline(topic, value=Json("i int, name text"), max_rejects=len(LENIENT))
    published = world.run(pipeline)
    assert published.batch.rejected == len(LENIENT)
    assert findings(audited(world, pipeline)) == {}
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    for offset, (_, row) in enumerate(LENIENT, others):
        world.execute(
            f"insert into {table} (i, name, {LINEAGE}) select {row}, kafka_topic, kafka_partition, {offset}, "
            f"kafka_timestamp, batch_id from {table} where kafka_offset = 0"
        )
    found = findings(audited(world, pipeline))
    assert found["changed"] == (len(LENIENT), list(range(others, others + 10)))
    world.execute(f"delete from {table} where kafka_offset >= {others}")
    assert findings(audited(world, pipeline)) == {}
