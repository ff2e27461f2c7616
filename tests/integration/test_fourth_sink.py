"""A sink that the package does not know runs batches, replays and audits: nothing depends on which sinks exist."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
from psycopg2 import sql

from exactbatch import Json, Pipeline
from exactbatch.audit.run_audit import audit
from exactbatch.columns import Column
from exactbatch.errors import ConfigurationError
from exactbatch.ledger import definition
from exactbatch.ledger.definition import build_definition
from exactbatch.model import Evolve
from exactbatch.operations.compact import compact_changes
from exactbatch.planning.freeze_replay import freeze_replay, preview_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.capabilities import Comparison
from exactbatch.sinks.sink import (
    KINDS,
    FormatFacts,
    Sink,
    SinkIdentity,
    SinkKind,
    SinkTraits,
    check_lineage_names,
    refuse_truncates,
)
from exactbatch.sinks.staged_rows import Part, StagedRows
from exactbatch.sinks.tables.counted_writes import delete_rows, write_rows
from exactbatch.sinks.tables.lineage_table import LineageTable
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.tables.target_definition import prepare_table
from exactbatch.sinks.values.cast import RejectRule, reject_rules
from exactbatch.sinks.values.null_safe_groups import column_list
from exactbatch.sinks.writers import WRITERS, find_writer
from support.batch_runner import BatchRunner, MakePipeline
from support.topics import Topic, record

_PLACE = (Column("kafka_topic", "text"), Column("kafka_partition", "integer"))


LAST = SinkKind("last", ("_record",), is_derived=True)


@dataclass(frozen=True)
class LastOfPartition:
    """Keep the last row of each partition in `target`, derived from all rows in `<target>_record`."""

    target: str

    @property
    def kind(self) -> SinkKind:
        return LAST

    @property
    def identity(self) -> SinkIdentity:
        return SinkIdentity(self.target, LAST.name, key=(), version="", lineage="record")

    def find_traits(self, facts: FormatFacts) -> SinkTraits:
        refuse_truncates("LastOfPartition", facts)
        return SinkTraits(
            sink=self,
            target=self.target,
            key_columns=tuple(column.name for column in _PLACE),
            not_copyable="a last row, which only the last range has",
        )

    def check(self, columns: Sequence[Column], traits: SinkTraits) -> None:
        check_lineage_names(self.target, columns)

    def result_columns(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        return tuple(columns)


@dataclass(frozen=True)
class LastWriter:
    """The writer of a LastOfPartition."""

    sink: LastOfPartition
    traits: SinkTraits

    @property
    def parts(self) -> "tuple[LastWriter, ...]":
        return (self,)

    @cached_property
    def _target(self) -> TargetTable:
        return TargetTable(self.sink.target)

    @cached_property
    def lineage_table(self) -> LineageTable:
        return LineageTable(self._target.sibling("_record"))

    @property
    def tables(self) -> tuple[TargetTable, ...]:
        return (self.lineage_table.table, self._target)

    def prepare(self, cursor: Cursor, columns: Sequence[Column], *, evolve: Evolve = "refuse") -> None:
        self._target.lock(cursor)
        prepare_table(cursor, self._target, (*_PLACE, *columns), key=self.traits.key_columns, evolve=evolve)
        self.lineage_table.prepare(cursor, columns, evolve=evolve)

    def check_replay(self, cursor: Cursor) -> None:
        self.lineage_table.check_replay(cursor)

    def reject_rules(
        self, cursor: Cursor, columns: Sequence[Column], *, batch_id: int, evolve: Evolve | None = None
    ) -> list[RejectRule]:
        return reject_rules(self.lineage_table.casts(cursor, columns, evolve=evolve))

    def insert_staged(self, cursor: Cursor, staged: StagedRows, columns: Sequence[Column]) -> int:
        self._target.lock(cursor)
        inserted = self.lineage_table.insert_staged(cursor, staged, columns)
        # All columns, not only those of this batch: an earlier batch may have written others.
        names = column_list(self._target.columns(cursor))
        delete_rows(cursor, self._target, sql.SQL("true"), checks=False)
        write_rows(
            cursor,
            self._target,
            sql.SQL(
                "insert into {} ({}) select distinct on (kafka_topic, kafka_partition) {} from {} "
                "order by kafka_topic, kafka_partition, kafka_offset desc"
            ).format(self._target.identifier, names, names, self.lineage_table.identifier),
        )
        return inserted

    def retract(self, cursor: Cursor, parts: Sequence[Part]) -> int:
        self._target.lock(cursor)
        return self.lineage_table.retract(cursor, parts)

    def compare_target(
        self,
        columns: Sequence[Column] | None,
        target_types: Mapping[str, str],
        lineage_types: Mapping[str, str],
    ) -> Comparison:
        names = [name for name in target_types if name in lineage_types]
        return Comparison(
            expected=sql.SQL(
                "select {} from {} r where not exists (select from {} l where l.kafka_topic = r.kafka_topic "
                "and l.kafka_partition = r.kafka_partition and l.kafka_offset > r.kafka_offset)"
            ).format(column_list(names), self.lineage_table.identifier, self.lineage_table.identifier),
            actual=sql.SQL("select {} from {}").format(column_list(names), self._target.identifier),
            actual_count=sql.SQL("select count(*) from {}").format(self._target.identifier),
            same_row=sql.SQL("m.kafka_topic = t.kafka_topic and m.kafka_partition = t.kafka_partition"),
            compared=names,
        )


@pytest.fixture(autouse=True)
def known_to_the_ledger(monkeypatch):
    """List the kind of the sink, and its writer."""
    monkeypatch.setitem(KINDS, LAST.name, LAST)  # type: ignore[arg-type]
    monkeypatch.setitem(WRITERS, LastOfPartition, LastWriter)  # type: ignore[arg-type]


def make(topic: Topic, make_pipeline: MakePipeline, **changes: Any) -> Pipeline:
    sink = LastOfPartition(f'public."{topic.name}"')
    return make_pipeline(topic, **{"sink": sink, "value": Json("id int, name text"), **changes})


def state(world: BatchRunner, pipeline: Pipeline) -> list[tuple[Any, ...]]:
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    return world.rows(f"select kafka_partition, id, name from {table} order by 1")


def test_sink_of_another_file_runs_batch_replay_and_audit(world, make_topic, make_pipeline):
    topic = make_topic(2)
    pipeline = make(topic, make_pipeline, max_rejects=1)
    assert isinstance(pipeline.sink, Sink)
    topic.produce(record(1, "a"), record(2, "b"), b"bad")
    topic.produce(record(3, "c"), partition=1)
    batch = world.run(pipeline).batch
    assert (batch.records, batch.rows, batch.rejected) == (4, 3, 1)
    assert state(world, pipeline) == [(0, 2, "b"), (1, 3, "c")]
    topic.produce(record(4, "d"))
    world.run(pipeline)
    assert state(world, pipeline) == [(0, 4, "d"), (1, 3, "c")]
    assert world.is_exact(pipeline)
    assert audit(pipeline, world.settings, values=True).is_exact

    # A program that gives no names replays what the second batch and a part of the first have given.
    nameless = replace(pipeline, value=Json("id int"))
    request = ReplayRequest(ranges=(RequestedRange(topic.name, 0, 1, 4),))
    preview = preview_replay(world.connection, world.log, nameless, request)
    assert sum(part.rows or 0 for part in preview.retracted) == preview.rows == 2
    batch_id = freeze_replay(world.connection, world.log, nameless, request, origin="cli").batch_id
    assert batch_id is not None
    world.process(nameless, batch_id)
    assert state(world, nameless) == [(0, 4, None), (1, 3, "c")]
    assert world.is_exact(nameless)


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("update {target} set id = 0 where kafka_partition = 1", "stale"),
        ("delete from {target} where kafka_partition = 0", "stale"),
        ("delete from {records} where kafka_offset = 0", "missing"),
        ("update {records} set name = 'x' where kafka_offset = 0", "changed"),
    ],
)
def test_an_audit_finds_what_was_altered(world, make_topic, make_pipeline, statement, finding):
    topic = make_topic(2)
    pipeline = make(topic, make_pipeline)
    topic.produce(record(1, "a"), record(2, "b"))
    topic.produce(record(3, "c"), record(4, "d"), partition=1)
    world.run(pipeline)
    tables = {
        "{target}": find_writer(pipeline.traits).tables[-1].identifier,
        "{records}": find_writer(pipeline.traits).lineage_table.identifier,
    }
    for name, table in tables.items():
        statement = statement.replace(name, table.as_string(world.connection))
    world.execute(statement)
    report = audit(pipeline, world.settings, values=True)
    assert not report.is_exact
    counts = {
        "stale": report.target.stale,
        "missing": sum(partition.missing.count for partition in report.partitions),
        "changed": sum(partition.changed.count for partition in report.partitions),
    }
    assert counts[finding] > 0


def test_what_it_cannot_do_is_refused_in_its_own_words(world, make_topic, make_pipeline):
    topic = make_topic()
    with pytest.raises(ConfigurationError, match="a last row, which only the last range has"):
        make(topic, make_pipeline, commit="partition")
    pipeline = make(topic, make_pipeline)
    with pytest.raises(ConfigurationError, match="nothing to compact"):
        compact_changes(world.connection, world.log, pipeline, before=None)


def test_tables_of_an_unknown_sink_are_not_guessed(monkeypatch):
    """A pipeline that another version of exactbatch has registered may write to tables that nobody knows here."""
    pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=LastOfPartition("public.t"))
    assert build_definition(pipeline).tables == {("public", "t"), ("public", "t_record")}
    monkeypatch.delitem(KINDS, LAST.name)  # type: ignore[arg-type]
    definition._tables.cache_clear()
    with pytest.raises(ConfigurationError, match="registered with the sink 'last', which this version"):
        _ = build_definition(pipeline).tables
