"""Compare the lineage that a transform's staged rows carry with the records that were decoded."""

from collections.abc import Sequence

from psycopg2 import sql

from exactbatch.batch.rows.rejected import note_attempt
from exactbatch.batch.staging.staging_tables import StagingTables, identifier
from exactbatch.batch.staging.task import StagedBatch
from exactbatch.columns import LINEAGE_NAMES
from exactbatch.errors import StagedRowsDiffer, TransformRefused
from exactbatch.ledger import count_staged_records
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, transaction


def check_staged_lineage(
    connection: Connection,
    pipeline: Pipeline,
    tables: StagingTables,
    *,
    attempts: Sequence[int],
    readers: Sequence[int],
    decoded: int,
) -> None:
    """Raise TransformRefused unless each staged row and note carries the lineage of a decoded record.

    `attempts` have staged the rows, and `readers` the lineage of the `decoded` records. Raises StagedRowsDiffer if
    the table of lineage does not hold all of these.
    """
    with transaction(connection) as cursor:
        cursor.execute(
            sql.SQL("select count(*) from {} where task_attempt = any({})").format(
                identifier(tables.lineage), sql.Literal(list(readers))
            )
        )
        if cursor.fetchone()[0] != decoded:
            raise StagedRowsDiffer(
                f"staging table {tables.lineage} does not hold the {decoded} records that were decoded: Spark "
                f"lost some and read them again, or Postgres was restarted. Nothing was written; try again.",
                batch_id=tables.batch_id,
            )
        cursor.execute(
            sql.SQL(
                "select concat_ws(' ', coalesce(kafka_topic, 'null'), 'partition', "
                "coalesce(kafka_partition::text, 'null'), 'offset', coalesce(kafka_offset::text, 'null'), "
                "'of', coalesce(kafka_timestamp::text, 'no time')) "
                "from (select kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, true as has_time "
                "from {rows} where task_attempt = any({attempts}) union all "
                'select topic, partition, "offset", null, false from {rejects} '
                "where task_attempt = any({notes})) r "
                "where not exists (select from {lineage} l "
                "where l.task_attempt = any({readers}) and l.kafka_topic = r.kafka_topic "
                "and l.kafka_partition = r.kafka_partition and l.kafka_offset = r.kafka_offset "
                "and (l.kafka_timestamp is not distinct from r.kafka_timestamp or not has_time)) limit 1"
            ).format(
                rows=identifier(tables.rows),
                rejects=identifier(tables.rejects),
                lineage=identifier(tables.lineage),
                attempts=sql.Literal(list(attempts)),
                notes=sql.Literal(list(map(note_attempt, attempts))),
                readers=sql.Literal(list(readers)),
            )
        )
        if (forged := cursor.fetchone()) is not None:
            raise TransformRefused(
                f"pipeline {pipeline.name!r}: the transform returned a row with the lineage {forged[0]}, which no "
                f"decoded record has. Nothing was written. Let the transform pass {', '.join(LINEAGE_NAMES)} "
                f"through unchanged.",
                batch_id=tables.batch_id,
            )


def records_with_rows(connection: Connection, tables: StagingTables, staged: StagedBatch) -> int:
    """Return how many records the staged rows, and those that could not be staged, come from. Raises
    TransformRefused for a record that was not read."""
    with transaction(connection):
        records, foreign = count_staged_records(
            connection,
            tables.batch_id,
            rows=identifier(tables.rows),
            rejects=identifier(tables.rejects),
            attempts=staged.attempts,
            notes=list(map(note_attempt, staged.attempts)),
        )
    decoded = sum(piece.decoded for piece in staged.pieces)
    if foreign is not None or records > decoded:
        raise TransformRefused(
            f"the rows of the transform come from {records} records, although {decoded} were decoded"
            + (
                f"; one carries the lineage {foreign}, which is not in the batch"
                if foreign is not None
                else ""
            )
            + f". Nothing was written. Let the transform pass {', '.join(LINEAGE_NAMES[:3])} through unchanged.",
            batch_id=tables.batch_id,
        )
    return records
