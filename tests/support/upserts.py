"""Records, pipelines and targets of Upserts."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from exactbatch import Custom, Json, Pipeline
from exactbatch.formats.decoders import find_decoder
from exactbatch.planning.freeze_replay import freeze_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.sinks.writers import find_writer
from support.batch_runner import BatchRunner

MakeUpsert = Callable[..., Pipeline]


def change(number: int | None, name: str | None, version: int | None = None) -> bytes:
    return json.dumps({"id": number, "name": name, "version": version}).encode()


def key_of(number: int) -> bytes:
    return json.dumps({"id": number}).encode()


def state(world: BatchRunner, pipeline: Pipeline) -> dict[int, str]:
    """The target, by key."""
    table = find_writer(pipeline.traits).tables[-1].identifier.as_string(world.connection)
    return {row[0]: row[1] for row in world.rows(f"select id, name from {table}")}


def changes(world: BatchRunner, pipeline: Pipeline) -> list[tuple[Any, ...]]:
    table = find_writer(pipeline.traits).lineage_table.identifier.as_string(world.connection)
    return world.rows(
        f"select id, name, deleted, kafka_partition, kafka_offset, batch_id from {table} "
        f"order by kafka_partition, kafka_offset"
    )


def replayed(world: BatchRunner, pipeline: Pipeline, *bounds: tuple[int, int], partition: int = 0) -> None:
    asked = tuple(RequestedRange(pipeline.known_topics(())[0], partition, *each) for each in bounds)
    batch_id = freeze_replay(
        world.connection, world.log, pipeline, ReplayRequest(ranges=asked), origin="cli"
    ).batch_id
    assert batch_id is not None
    world.process(pipeline, batch_id)


def decode_wrongly(schema: str, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Custom:
    """The format Json of a program with a mistake: `change` changes the rows."""

    def decode(values: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        indexes = values.column("value_index")
        decoded = find_decoder(Json(schema)).decode(values.column("value"))
        rejects = {indexes[at].as_py(): reason for at, reason in decoded.rejects}
        return change(decoded.rows).append_column("value_index", indexes.take(decoded.kept)), rejects

    return Custom(decode, schema)


def with_wrong_keys(schema: str) -> Custom:
    """The format of a program with a mistake: its keys are 100 too high."""

    def change(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.set_column(0, "id", pc.add(rows.column(0), pa.scalar(100, pa.int32())))

    return decode_wrongly(schema, change)
