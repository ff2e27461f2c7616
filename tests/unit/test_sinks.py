"""Each sink of the package satisfies the protocol, and the ledger can tell its tables from its name alone."""

import pickle
from dataclasses import replace

import pytest

from exactbatch import Aggregate, Append, Count, Json, Pipeline, Upsert, Window
from exactbatch.errors import ConfigurationError
from exactbatch.ledger.definition import definition_of
from exactbatch.sinks import SINKS, Sink, UpsertWithoutHistory
from exactbatch.sinks.tables.target import TargetTable

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


def test_every_sink_has_an_example():
    assert {type(sink) for sink in EXAMPLES} == set(SINKS.values())


@pytest.mark.parametrize("sink", EXAMPLES, ids=str)
def test_a_sink_satisfies_the_protocol(sink):
    assert isinstance(sink, Sink)
    assert SINKS[sink.kind] is type(sink)
    identity = sink.identity
    assert (identity.target, identity.sink, identity.lineage) == (sink.target, sink.kind, sink.lineage)
    assert sink.tables[-1].spec == sink.target
    assert sink.lineage_table.table in sink.tables
    assert (sink.lineage_table.table == sink.tables[-1]) is not sink.is_derived
    assert sink.lineage_table.lineage == sink.lineage
    assert bool(sink.key_columns) is (sink.is_derived or not sink.keeps_every_row)


@pytest.mark.parametrize("sink", EXAMPLES, ids=str)
def test_the_ledger_knows_all_tables_of_a_sink(sink):
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int, at timestamptz, n int"), sink=sink)
    assert {table.name for table in sink.tables} <= definition_of(pipeline).tables


@pytest.mark.parametrize("sink", EXAMPLES, ids=str)
@pytest.mark.parametrize(("schema", "name"), [("public", "t" * 64), ("s" * 64, "t"), ("public", "ä" * 32)])
def test_a_name_that_postgres_would_cut_is_refused(sink, schema, name):
    with pytest.raises(ConfigurationError, match=r"is too long\. It has 64 bytes, and Postgres stores 63"):
        replace(sink, target=f'"{schema}"."{name}"')


def test_two_long_names_of_the_ledger_are_the_one_table_that_postgres_has():
    one, other = (TargetTable("public." + "t" * 63 + suffix) for suffix in ("_orders", "_customers"))
    assert one.name == other.name == ("public", "t" * 63)
    assert TargetTable('public."' + "ä" * 32 + '"').name == ("public", "ä" * 31)


def test_a_target_that_is_partitioned_by_batch_takes_whole_batches():
    sink = Append("public.t", layout="by_batch")
    with pytest.raises(
        ConfigurationError, match="found layout='by_batch', where a batch becomes visible as a whole"
    ):
        Pipeline(name="p", topics=("t",), value=Json("id int"), sink=sink, commit="partition")
    with pytest.raises(ConfigurationError, match="smallest_partition to be 0 or more, found -1"):
        Append("public.t", layout="by_batch", smallest_partition=-1)
    with pytest.raises(ConfigurationError, match="expected layout to be"):
        Append("public.t", layout="by_topic")  # type: ignore[arg-type]
    assert (sink.drops_batches, sink.inserts_in_parts, sink.merger is None) == (True, False, False)
    assert Append("public.t").merger is None


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

    assert pipeline("id int, file text, pos bigint", ("file", "pos")).sink.needs_last_records_only is False
    with pytest.raises(ConfigurationError, match="the version of public.t among .*found 'pos'"):
        pipeline("id int, file text", ("file", "pos"))
    with pytest.raises(ConfigurationError, match="'id' is a version and part of the key"):
        pipeline("id int, file text", ("file", "id"))
    with pytest.raises(ConfigurationError, match="must be comparable, and pos is json"):
        pipeline("id int, file text, pos json", ("file", "pos"))


def test_an_upsert_without_history_is_another_sink():
    sink = Upsert("public.t", key=("id",), version="at", history=False)
    assert isinstance(sink, UpsertWithoutHistory)
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert replace(Upsert("public.t", key=("id",), version="at"), history=False) == sink
    assert sink.identity.sink == "upsert_latest"
    with pytest.raises(ConfigurationError, match="to keep a history, write Upsert"):
        replace(sink, history=True)
