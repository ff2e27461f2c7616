"""Each sink of the package satisfies the protocol, and the ledger can tell its tables from its name alone."""

import pickle
from dataclasses import dataclass, replace
from typing import Any

import pytest
from psycopg2 import sql

from exactbatch import Aggregate, Append, Count, Json, Pipeline, Upsert, Window
from exactbatch.errors import ConfigurationError, TargetMismatch
from exactbatch.ledger.definition import build_definition
from exactbatch.sinks import Sink
from exactbatch.sinks.capabilities import AttachesPartitions, MergesPartitions
from exactbatch.sinks.several_writer import SeveralWriter
from exactbatch.sinks.sink import KINDS
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.table_name import TableName
from exactbatch.sinks.writers import WRITERS
from support.writers import writer_of

EXAMPLES: tuple[Sink, ...] = (
    Append("public.t"),
    Append("public.t", lineage="batch"),
    Append("public.t", layout="by_batch"),
    Upsert("public.t", key=("id",)),
    Upsert("public.t", key=("id",), version="at"),
    Upsert("public.t", key=("id",), version=("at", "n")),
    Upsert("public.t", key=("id",), version="at", history=False),
    Upsert("public.t", key=("id",), history=False),
    Aggregate("public.t", ("id",), {"n": Count()}),
    Aggregate("public.t", ("id", Window("at", "1 hour")), {"n": Count()}, allowed_lateness="1 day"),
)


def test_every_sink_has_an_example_and_a_writer():
    assert {type(sink) for sink in EXAMPLES} == set(WRITERS)
    assert {sink.kind for sink in EXAMPLES} == set(KINDS.values())


@pytest.mark.parametrize("sink", EXAMPLES, ids=str)
def test_a_sink_satisfies_the_protocol(sink):
    assert isinstance(sink, Sink)
    assert KINDS[sink.kind.name] is sink.kind
    identity, writer = sink.identity, writer_of(sink)
    traits = writer.traits
    assert (identity.target, identity.sink, identity.lineage) == (
        sink.target,
        sink.kind.name,
        traits.lineage,
    )
    assert (traits.sink, traits.identity, traits.target) == (sink, identity, sink.target)
    assert writer.parts == (writer,)
    assert writer.tables[-1].spec == sink.target
    assert writer.lineage_table.table in writer.tables
    assert (writer.lineage_table.table == writer.tables[-1]) is not traits.is_derived
    assert writer.lineage_table.lineage == traits.lineage
    assert bool(traits.key_columns) is (traits.is_derived or not traits.keeps_every_row)
    assert pickle.loads(pickle.dumps(writer)) == writer


@pytest.mark.parametrize("sink", EXAMPLES, ids=str)
def test_the_ledger_knows_all_tables_of_a_sink(sink):
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int, at timestamptz, n int"), sink=sink)
    assert {table.name for table in writer_of(sink).tables} <= build_definition(pipeline).tables


@pytest.mark.parametrize("sink", EXAMPLES, ids=str)
@pytest.mark.parametrize(("schema", "name"), [("public", "t" * 64), ("s" * 64, "t"), ("public", "ä" * 32)])
def test_a_name_that_postgres_would_cut_is_refused(sink, schema, name):
    with pytest.raises(ConfigurationError, match=r"is too long\. It has 64 bytes, and Postgres stores 63"):
        replace(sink, target=f'"{schema}"."{name}"')


def test_two_long_names_of_the_ledger_are_the_one_table_that_postgres_has():
    one, other = (TableName("public." + "t" * 63 + suffix) for suffix in ("_orders", "_customers"))
    assert one.name == other.name == ("public", "t" * 63)
    assert TableName('public."' + "ä" * 32 + '"').name == ("public", "ä" * 31)


def test_a_target_that_is_partitioned_by_batch_takes_whole_batches():
    sink = Append("public.t", layout="by_batch")
    with pytest.raises(
        ConfigurationError, match="found layout='by_batch', where a batch becomes visible as a whole"
    ):
        Pipeline(name="p", topics=("t",), value=Json("id int"), sink=sink, commit="partition")
    with pytest.raises(ConfigurationError, match="min_offsets to be 0 or more, found -1"):
        Append("public.t", layout="by_batch", min_offsets=-1)
    with pytest.raises(ConfigurationError, match="expected layout to be"):
        Append("public.t", layout="by_topic")  # type: ignore[arg-type]
    by_batch, plain = writer_of(sink), writer_of(Append("public.t"))
    for capability in (AttachesPartitions, MergesPartitions):
        assert isinstance(by_batch, capability)
        assert not isinstance(plain, capability)


def test_a_class_is_no_sink():
    with pytest.raises(ConfigurationError, match="expected sink to be Sink"):
        Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append)  # type: ignore[arg-type]


def test_the_ledger_registers_one_version_by_its_name_and_several_quoted():
    def version(of: str | tuple[str, ...] | None) -> str:
        return Upsert("public.t", key=("id",), version=of).identity.version

    assert (version(None), version("lsn"), version(("lsn",))) == ("", "lsn", "lsn")
    assert version(("file", "pos", "row")) == '"file", "pos", "row"'
    assert version(("a, b", "c")) != version(("a", "b, c"))


@pytest.mark.parametrize("version", [(), ("a", "a"), ('a", "b',), 'a"b'])
def test_a_version_is_one_column_or_several_different_ones(version):
    with pytest.raises(ConfigurationError, match=r"one or|several different ones|double quote in its name"):
        Upsert("public.t", key=("id",), version=version)


def test_every_column_of_a_version_is_one_of_the_pipeline():
    def pipeline(columns: str, version: tuple[str, ...]) -> Pipeline:
        sink = Upsert("public.t", key=("id",), version=version)
        return Pipeline(name="p", topics=("t",), value=Json(columns), sink=sink)

    assert pipeline("id int, file text, pos bigint", ("file", "pos")).traits.needs_last_records_only is False
    with pytest.raises(ConfigurationError, match="the version of public.t among .*found 'pos'"):
        pipeline("id int, file text", ("file", "pos"))
    with pytest.raises(ConfigurationError, match="'id' is a version and part of the key"):
        pipeline("id int, file text", ("file", "id"))
    with pytest.raises(ConfigurationError, match="must be comparable, and pos is json"):
        pipeline("id int, file text, pos json", ("file", "pos"))


def test_an_upsert_without_history_is_another_kind():
    sink = Upsert("public.t", key=("id",), version="at", history=False)
    assert pickle.loads(pickle.dumps(sink)) == sink
    kept = Upsert("public.t", key=("id",), version="at")
    assert replace(kept, history=False) == sink
    assert (kept.identity.sink, sink.identity.sink) == ("upsert", "upsert_latest")
    assert type(writer_of(kept)) is not type(writer_of(sink))


@pytest.mark.parametrize("sink", EXAMPLES, ids=str)
def test_a_pipeline_keeps_the_sink_that_its_user_wrote(sink):
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int, at timestamptz, n int"), sink=sink)
    assert pipeline.sink is sink
    alone = replace(pipeline, sink=[sink])
    assert alone.traits == pipeline.traits
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline


@dataclass
class _Receives:
    """A writer of one target in which so few rows arrive; those of exactbatch notice it themselves."""

    traits: Any
    arrived: int

    def insert_staged(self, *_given: Any) -> int:
        return self.arrived


@pytest.mark.parametrize("arrived", [(1, 2), (2, 1)])
def test_each_of_several_targets_receives_its_rows(arrived):
    traits = writer_of([Append("public.a"), Append("public.b")]).traits
    parts: Any = tuple(_Receives(part, count) for part, count in zip(traits.parts, arrived, strict=True))
    staged = StagedRows(sql.Identifier("staged"), 1, {1: 2})
    name = "ab"[arrived.index(1)]
    cursor: Any = None
    with pytest.raises(
        TargetMismatch, match=f"target public.{name}: 2 of the staged rows are for it, and 1 arrived"
    ):
        SeveralWriter(parts, traits).insert_staged(cursor, staged, ())
