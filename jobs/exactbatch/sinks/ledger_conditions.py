"""Facts of the ledger that conditions over staged rows and windows refer to, as subqueries.

These are not in ledger/queries/: they are evaluated for each row, within a statement over a sink's own tables,
and an aiosql query cannot be part of another statement. Nothing here writes. The names are a public contract.
"""

from psycopg2 import sql


def is_advance(batch_id: int) -> sql.Composable:
    """Return the condition that a batch is an advance, and not a replay."""
    return sql.SQL("(select b.kind from exactbatch.batch b where b.batch_id = {}) = 'advance'").format(
        sql.Literal(batch_id)
    )


def earlier_reason(batch_id: int, prefix: str) -> sql.Composable:
    """Return the reason, which starts with `prefix`, for which the record of a staged row was rejected before.

    Only rejects of the batch's pipeline count, from the same topic under the same topic ID. Null if there is none.
    """
    return sql.SQL(
        "(select r.reason from exactbatch.batch b join exactbatch.batch_range g using (batch_id) "
        "join exactbatch.rejected_record r on r.pipeline = b.pipeline and r.topic_id = g.topic_id "
        'and r.partition = g.partition and r."offset" = kafka_offset '
        "where b.batch_id = {} and g.topic = kafka_topic and g.partition = kafka_partition "
        "and g.from_offset <= kafka_offset and kafka_offset < g.until_offset and starts_with(r.reason, {}))"
    ).format(sql.Literal(batch_id), sql.Literal(prefix))


def is_replaced_by(batch_id: int) -> sql.Composable:
    """Return the condition that a row `c` with lineage is one that a batch will retract: of its pipeline and ranges."""
    return sql.SQL(
        "exists (select from exactbatch.batch b join exactbatch.batch_range g using (batch_id) "
        "join exactbatch.batch o on o.pipeline = b.pipeline and o.batch_id = c.batch_id "
        "where b.batch_id = {} and g.topic = c.kafka_topic and g.partition = c.kafka_partition "
        "and g.from_offset <= c.kafka_offset and c.kafka_offset < g.until_offset)"
    ).format(sql.Literal(batch_id))


def committed_batches(target: tuple[str, str]) -> sql.Composable:
    """Return the number of batches that pipelines with this target, as schema and table, have committed."""
    return sql.SQL(
        "(select count(*) from exactbatch.batch b join exactbatch.pipeline p on p.name = b.pipeline "
        "where b.status = 'committed' and {})"
    ).format(_writes_to(target))


def has_committed_replay(target: tuple[str, str]) -> sql.Composable:
    """Return the condition that a pipeline with this target has committed a replay."""
    return sql.SQL(
        "exists (select from exactbatch.batch b join exactbatch.pipeline p "
        "on p.name = b.pipeline where b.kind = 'replay' and b.status = 'committed' and {})"
    ).format(_writes_to(target))


def has_topic_without(watermark: sql.Composable, target: tuple[str, str]) -> sql.Composable:
    """Return the condition that a pipeline with this target has processed a topic that the watermark's table lacks."""
    return sql.SQL(
        "exists (select from exactbatch.stored_offset o join exactbatch.pipeline p on p.name = o.pipeline "
        "where {} and not exists (select from {} w where w.topic = o.topic))"
    ).format(_writes_to(target), watermark)


def _writes_to(target: tuple[str, str]) -> sql.Composable:
    """Return the condition that a target of the registered pipeline `p` is this table, however it is spelled."""
    return sql.SQL(
        "exists (select from jsonb_array_elements(jsonb_build_array(jsonb_build_array(p.target)) "
        "|| coalesce(nullif(p.other_targets, ''), '[]')::jsonb) others (registered), "
        "parse_ident(registered ->> 0) parsed (parts) "
        "where case cardinality(parts) when 1 then array_prepend('public', parts) else parts end = {}::text[])"
    ).format(sql.Literal(list(target)))
