"""Check staged rows against the rules of rejects once more, within publish."""

from collections.abc import Sequence

from psycopg2 import sql

from exactbatch.errors import StagedRowsDiffer
from exactbatch.postgres.connection import Cursor
from exactbatch.sinks.staged_rows import StagedRows
from exactbatch.sinks.tables.target import TargetTable
from exactbatch.sinks.values.cast import RejectRule


def check_fits(cursor: Cursor, target: TargetTable, staged: StagedRows, rules: Sequence[RejectRule]) -> None:
    """Raise StagedRowsDiffer, retryable, if a staged row breaks a rule: the watermark may have moved since these
    were applied."""
    if not rules:
        return
    cursor.execute(
        sql.SQL(
            "select kafka_topic, kafka_partition, kafka_offset, case {cases} end as reason from {staging} "
            "where {accepted} and ({conditions}) limit 1"
        ).format(
            cases=sql.SQL(" ").join(
                sql.SQL("when {} then {}").format(rule.condition, rule.reason) for rule in rules
            ),
            staging=staged.table,
            accepted=staged.accepted,
            conditions=sql.SQL(" or ").join(sql.SQL("({})").format(rule.condition) for rule in rules),
        )
    )
    if (row := cursor.fetchone()) is not None:
        topic, partition, offset, reason = row
        raise StagedRowsDiffer(
            f"{topic}[{partition}] offset {offset}: a staged row does not fit {target.spec}: {reason}. Such "
            f"records are rejected before publish, unless the watermark moves in between. Nothing was "
            f"written; the retry rejects it.",
            topic=topic,
            partition=partition,
            from_offset=offset,
            until_offset=offset + 1,
        )
