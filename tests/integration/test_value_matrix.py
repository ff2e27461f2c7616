"""Whatever a format gives and whatever a column is: the stored value is the record's, or there is none."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

from exactbatch import Append, Json, Upsert
from exactbatch.batch.rows.rejected import PendingRejects
from exactbatch.batch.staging.transformed_rows import keep_storable_rows
from exactbatch.columns import LINEAGE_NAMES, Column
from exactbatch.errors import TransformFailed, TransformRefused
from exactbatch.sinks.tables.target import TargetTable
from support.transform_queries import LINEAGE
from support.value_matrix import (
    AS_TEXT,
    AS_TEXT_ARRAYS,
    KINDS,
    SOURCES,
    Kind,
    Matrix,
    Result,
    Source,
    rendered,
    summary,
)

pytestmark = pytest.mark.slow

DOC = Path(__file__).parents[2] / "docs" / "value-matrix.md"
CORE = {"text", "text[]", "bigint", "double precision", "numeric(10,2)", "timestamp with time zone"}
# Of arrays in the core: kinds that are no arrays refuse them all for one reason.
SCALARS_FOR_ARRAYS = {"integer", "text", "jsonb"}
# Of these, equal values may differ, as -0 and 0; a group has one of them. Others have no order or no `=`.
UNGROUPED = ("json", "public.item", "public.citext", "interval", "real", "double precision", "public.tags")


@pytest.fixture
def matrix(connection, database):
    return Matrix(connection, database)


def in_core(source: Source, kind: Kind) -> bool:
    if source.written not in CORE:
        return False
    if source.column.element is not None:
        return kind.is_array or kind.declared in SCALARS_FOR_ARRAYS
    return source.written == "text" or (not kind.is_array and not kind.declared.startswith("reg"))


def wrong(results: dict[tuple[str, str], Result]) -> list[str]:
    return [
        f"{source} → {kind}: {what}" for (source, kind), result in results.items() for what in result.wrong
    ]


def test_the_core_of_the_matrix_is_exact_rejected_or_refused(matrix):
    results = {
        (source.written, kind.title): matrix.append(source, kind)
        for source in SOURCES
        for kind in KINDS
        if in_core(source, kind)
    }
    assert wrong(results) == [], summary(list(results.values()))
    written = dict(
        re.findall(r"^\| (exact|exact or reject|refused) \| (.+) \|$", DOC.read_text(), re.MULTILINE)
    )
    for (source, kind), result in results.items():
        if source == "text":
            listed = written[result.word].split("; ")
            assert kind in listed, f"{kind}: {result.word}; write docs/value-matrix.md"


@pytest.mark.long
def test_whole_matrix_of_append_is_exact_and_page_shows_it(matrix):
    results = {
        (source.written, kind.title): matrix.append(source, kind) for source in SOURCES for kind in KINDS
    }
    assert wrong(results) == [], summary(list(results.values()))
    assert rendered(results) == DOC.read_text()


@pytest.mark.long
def test_the_whole_matrix_of_an_upsert_is_exact(matrix):
    results = {
        (source.written, kind.title): matrix.upsert(source, kind)
        for source in (*SOURCES, *AS_TEXT, *AS_TEXT_ARRAYS)
        for kind in KINDS
    }
    assert wrong(results) == [], summary(list(results.values()))


@pytest.mark.long
def test_every_type_of_pipeline_fits_tables_that_its_sink_makes(matrix):
    results = {}
    for source in (*SOURCES, *AS_TEXT, *AS_TEXT_ARRAYS):
        kind = matrix.kind_of(source)
        results[source.written, "append"] = matrix.own(source, kind, Append("public.t"))
        if source.written != "json":
            results[source.written, "upsert"] = matrix.own(source, kind, Upsert("public.t", key=("id",)))
        if not source.written.startswith(UNGROUPED):
            results[source.written, "aggregate"] = matrix.aggregate(source, kind)
    assert wrong(results) == [], summary(list(results.values()))


def test_check_that_raises_and_null_for_domain_are_rejects_with_their_reason(matrix):
    [text] = [source for source in SOURCES if source.written == "text"]
    kinds = {kind.declared: kind for kind in KINDS if not kind.options}
    picky = matrix.append(text, kinds["picky"])
    assert (picky.wrong, picky.word) == ([], "exact or reject")
    at = text.values.index("0x1F")
    assert picky.rejected[at] == "column 'x': no x, please, found 0x1F"
    needed = matrix.append(text, kinds["needed"])
    assert needed.rejected[len(text.values) - 1] == (
        "column 'x', public.needed: domain needed does not allow null values"
    )
    [raising] = [source for source in AS_TEXT if source.written == "public.picky"]
    matrix.judged(raising, Append("public.picked"))


def test_what_upsert_would_keep_as_another_type_on_way_is_refused(matrix):
    sources = {source.written: source for source in AS_TEXT}
    kinds = {kind.declared: kind for kind in KINDS if not kind.options}
    refused = matrix.upsert(sources["inet"], kinds["text"]).refused
    assert refused is not None
    assert "column x: changes are kept as inet, and the target has text" in refused
    same = matrix.upsert(sources["inet"], kinds["inet"])
    assert (same.wrong, same.refused) == ([], None)


def test_cast_is_equal_to_one_of_later_unless_type_has_changed(connection):
    columns = (Column("id", "bigint"), Column("x", "text"))
    table = TargetTable("public.t")
    changes = (
        "alter table t alter x type varchar(4)",
        "alter domain price add check (value > 0)",
        "alter table t alter x type price using null",
        'alter table t alter x type text collate "C"',
        "alter table t alter x type mood using null",
        "alter type mood add value 'so so'",
    )
    with connection.cursor() as cursor:
        cursor.execute("create domain price as numeric(10,2); create type mood as enum ('sad')")
        cursor.execute("create table t (id price, x varchar(3))")
        seen = [table.casts(cursor, columns)]
        assert table.casts(cursor, columns) == seen[0]
        for change in changes:
            cursor.execute(change)
            seen.append(table.casts(cursor, columns))
            assert seen[-1] != seen[-2], change
        connection.rollback()


NESTED = """
select id, named_struct(
    'at', at, 'local', to_timestamp_ntz('2026-01-01 10:00:00.123456'), 'day', date'2026-01-01',
    'none', cast(null as int),
    'price', cast(1.10 as decimal(10,2)), 'tiny', cast('1e-38' as decimal(38,38)), 'real', cast(0.1 as float),
    'nan', double('NaN'), 'bytes', X'00ff', 'long', 9223372036854775807L, 'old', date'-0043-03-15',
    'far', timestamp_micros(9223372036854775807), 'inner', named_struct('n', cast(null as string)),
    'map', map('k', at, 'none', null), 'array', array(array(1, null)), 'variant', parse_json('{"a":null}')
  ) as struct,
  map(7, at) as map, array(named_struct('at', at, 'none', cast(null as int))) as structs,
  array(at, null) as moments, array(1.10, null) as prices, {lineage} from records
"""


def test_transforms_nested_values_are_in_jsonb_to_last_digit(world, make_topic, make_pipeline):
    topic = make_topic()
    topic.produce(b'{"id": 1, "at": "2026-01-01T10:00:00.123456Z"}')
    world.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        pipeline = make_pipeline(
            topic, value=Json("id int, at timestamptz"), transform=NESTED.replace("{lineage}", LINEAGE)
        )
        assert world.run(pipeline).batch.rows == 1
        topic.produce(b'{"id": 2}')
        keyed = make_pipeline(
            topic,
            value=pipeline.value,
            transform=f"select map(date'2026-01-01', id) as days, {LINEAGE} from records",
        )
        with pytest.raises(
            TransformRefused, match=r"column days: .* keys of map<date,int> .* Make them strings"
        ):
            world.process(keyed, world.plan(keyed))
    finally:
        world.spark.conf.unset("spark.sql.session.timeZone")
    at = "2026-01-01T10:00:00.123456Z"
    [row] = world.rows(
        f"select struct::text, map::text, structs::text, moments::text, prices::text from {pipeline.traits.target}"
    )
    struct = json.loads(row[0], parse_float=str, parse_int=str)
    # As a timestamp without time zone is made in the session's, only its digits are looked at.
    assert struct.pop("local") == "2026-01-01T10:00:00.123456"
    assert struct == {
        "at": at, "day": "2026-01-01", "none": None, "price": "1.10", "tiny": "0." + "0" * 37 + "1",
        "real": "0.1", "nan": "NaN", "bytes": "AP8=", "long": "9223372036854775807", "old": "-0043-03-15",
        "far": "+294247-01-10T04:00:54.775807Z", "inner": {"n": None}, "map": {"k": at, "none": None},
        "array": [["1", None]], "variant": {"a": None},
    }  # fmt: skip
    assert json.loads(row[1]) == {"7": at}
    assert json.loads(row[2]) == [{"at": at, "none": None}]
    assert row[3:] == ('{"2026-01-01 10:00:00.123456+00",NULL}', "{1.10,NULL}")


def test_what_postgres_cannot_store_of_transform_is_refused_with_record():
    lineage = {
        "kafka_topic": pa.array(["t", "t"]),
        "kafka_partition": pa.array([0, 0], pa.int32()),
        "kafka_offset": pa.array([4, 5]),
        "kafka_timestamp": pa.nulls(2, pa.timestamp("us", "UTC")),
    }
    for column, what in (
        (pa.array([["a"], ["a", "\0"]]), "U.0000"),
        (pa.array([0, -(2**62)], pa.timestamp("us", "UTC")), "4713 BC"),
        (pa.array([0, -(2**31)], pa.int32()).cast(pa.date32()), "4713 BC"),
    ):
        noted = PendingRejects()
        batch = pa.record_batch({"x": column, **lineage})
        kept = keep_storable_rows(batch, batch.schema.names, noted, 1)
        assert kept.column("kafka_offset").to_pylist() == [4]
        ((note,),) = (each.to_pylist() for each in noted.take())
        assert re.match(rf"column 'x': .*{what}.*, in a row of the transform", note["reason"])
        assert (note["topic"], note["partition"], note["offset"]) == ("t", 0, 5)
        with pytest.raises(
            TransformFailed, match=rf"column 'x': .*{what}.*, in a row of the transform\. Nothing"
        ):
            keep_storable_rows(batch.drop_columns(list(LINEAGE_NAMES)), ["x"], noted, 1)
