"""Is a derived target what its changes or partial results make? All of it is computed again, and compared.

Values are compared as the bytes that Postgres stores, since its `=` takes values for equal that differ: text
in another case, an interval of 30 days and a month, 1.0 and 1.00. Keys bring rows together by `=`, as a unique
constraint does; the groups of an Aggregate are compared by that alone.
"""

from collections.abc import Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.errors import TargetMismatch
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.arrow import ArrowConnection
from exactbatch.postgres.connection import Connection
from exactbatch.sinks import Aggregate, Upsert
from exactbatch.sinks.finality import Finality
from exactbatch.sinks.groups import listed, same_group

# Of the rows that should be there and of those that are: how many have no counterpart or other bytes, and how many
# have more counterparts than one.
_DIFFERENT: Final = (
    "select count(*) filter (where m.{there} is null or t.{there} is null or {differ}) "
    "+ count(*) filter (where m.{there}) - (select count(*) from made) "
    "+ count(*) filter (where t.{there}) - ({counted}) "
    "from (select *, true as {there} from made) m full join (select *, true as {there} from found) t on {same}"
)
_THERE: Final = sql.Identifier("exactbatch there")


def stale_rows(results: ArrowConnection, connection: Connection, pipeline: Pipeline) -> int:
    """How many keys have a row in an Upsert's target that is not their latest change, or lack one.

    The pipeline's own columns are compared: a target may have others, which the pipeline writes no more, or
    never wrote. What a transform adds is not in the pipeline's schema: then all columns count that target and
    changes both have.
    """
    sink = pipeline.sink
    assert isinstance(sink, Upsert)
    own = {column.name for column in pipeline.value.columns}
    types = {
        name: type_
        for name, type_ in _common_columns(results, connection, sink)
        if name in own or pipeline.is_transformed
    }
    version = sql.SQL("null::int") if sink.version is None else sql.Identifier(sink.version)
    query = sql.SQL(
        "with ranked as (select {names}, deleted, row_number() over (partition by {key} order by "
        "{version} is null, {version} desc, kafka_topic desc, kafka_partition desc, kafka_offset desc) as rank "
        "from {change}), made as (select {values} from ranked where rank = 1 and not deleted), "
        "found as (select {names} from {target}) {different}"
    ).format(
        names=listed(types),
        # The target's types may be narrower than those of the changes.
        values=sql.SQL(", ").join(
            sql.SQL("{0}::{1} as {0}").format(sql.Identifier(name), sql.SQL(type_))
            for name, type_ in types.items()
        ),
        key=listed(sink.key),
        version=version,
        change=sink.contributions.table,
        target=sink.table,
        different=different(
            sql.SQL(" and ").join(sql.SQL("m.{0} = t.{0}").format(sql.Identifier(name)) for name in sink.key),
            [*types],
            counted=sql.SQL("select count(*) from {}").format(sink.table),
        ),
    )
    return _count(results, connection, query)


def stale_aggregates(results: ArrowConnection, connection: Connection, pipeline: Pipeline) -> int:
    """How many groups have a row in an Aggregate's target that their partial results do not make, or lack one."""
    sink = pipeline.sink
    assert isinstance(sink, Aggregate)
    types = dict(_columns_of(results, connection, sink.table))
    own = () if sink.finality is None else ("final", "revisions")
    if absent := [name for name in (*sink.by_names, *sink.measures, *own) if name not in types]:
        raise TargetMismatch(
            f"target {sink.target}: there is no column {', '.join(absent)}, which the pipeline writes. Add it, or "
            f"correct the pipeline."
        )
    measures = {
        name: measure.over_partials(sql.Identifier(name), types[name])
        for name, measure in sink.measures.items()
    }
    compared = [*sink.measures]
    also = None
    names = [*sink.by_names, *sink.measures]
    if sink.finality is not None:
        measures["final"] = _is_final(sink.finality)
        compared.append("final")
        names += ["final", "revisions"]
        also = _impossible_revisions(pipeline, sink.finality)
    query = sql.SQL(
        "with made as (select {by}, {measures} from {partial} group by {by}), "
        "found as (select {names} from {target}) {different}"
    ).format(
        by=listed(sink.by_names),
        measures=sql.SQL(", ").join(
            sql.SQL("({})::{} as {}").format(value, sql.SQL(types[name]), sql.Identifier(name))
            for name, value in measures.items()
        ),
        partial=sink.contributions.table,
        names=listed(names),
        target=sink.table,
        different=different(
            same_group(sink.by_names, "m", "t"),
            compared,
            counted=sql.SQL("select count(*) from {}").format(sink.table),
            also=also,
        ),
    )
    return _count(results, connection, query)


def _differ(one: str, other: str, names: Sequence[str]) -> sql.Composable:
    """Whether columns of two rows hold other bytes; nulls are equal."""
    return sql.SQL("record_image_ne(row({}), row({}))").format(listed(names, of=one), listed(names, of=other))


def different(
    same: sql.Composable,
    names: Sequence[str],
    *,
    counted: sql.Composable,
    also: sql.Composable | None = None,
) -> sql.Composable:
    """How many rows m of `made` and t of `found` have no counterpart of the same bytes in these columns.

    `counted` is a query for the number of rows in `found`; `also` is true of rows that differ besides.
    """
    conditions = [_differ("m", "t", names)] if names else [sql.SQL("false")]
    differ = sql.SQL(" or ").join([*conditions, also] if also is not None else conditions)
    return sql.SQL(_DIFFERENT).format(there=_THERE, same=same, differ=differ, counted=counted)


def _impossible_revisions(pipeline: Pipeline, finality: Finality) -> sql.Composable:
    """What no history makes `revisions` of a row t.

    A batch revises a window once at most, and none revises any before another has moved the watermark. Without
    a replay the watermark never goes back by itself: a window beyond every event time was never final.
    """
    return sql.SQL(
        "t.revisions is null or t.revisions < 0 or t.revisions > greatest(0, (select count(*) - 1 "
        "from exactbatch.batch b join exactbatch.pipeline p on p.name = b.pipeline "
        "where b.status = 'committed' and p.target = {target})) "
        "or t.revisions > 0 and not exists (select from exactbatch.batch b join exactbatch.pipeline p "
        "on p.name = b.pipeline where b.kind = 'replay' and b.status = 'committed' and p.target = {target}) "
        "and t.{start} + {length} + {wait} > (select max(event_time) from {watermark})"
    ).format(
        target=sql.Literal(pipeline.sink.target),
        start=sql.Identifier(finality.window.start.name),
        length=sql.Literal(finality.window.length),
        wait=sql.Literal(finality.wait),
        watermark=finality.watermark.table,
    )


def _is_final(finality: Finality) -> sql.Composable:
    """Whether the least of the partitions' greatest event times is at or past a window's end by so much."""
    return sql.SQL(
        "coalesce({start} + {length} + {wait} <= (select min(greatest) from (select max(event_time) as greatest "
        "from {watermark} group by topic, partition) partitions), false)"
    ).format(
        start=sql.Identifier(finality.window.start.name),
        length=sql.Literal(finality.window.length),
        wait=sql.Literal(finality.wait),
        watermark=finality.watermark.table,
    )


def _common_columns(results: ArrowConnection, connection: Connection, sink: Upsert) -> list[tuple[str, str]]:
    """The columns that the target has from the changes, with their types in the target."""
    changes = dict(_columns_of(results, connection, sink.contributions.table))
    return [(name, type_) for name, type_ in _columns_of(results, connection, sink.table) if name in changes]


def _columns_of(
    results: ArrowConnection, connection: Connection, table: sql.Composable
) -> list[tuple[str, str]]:
    """Name and type of each column of a table."""
    with results.cursor() as cursor:
        cursor.execute(
            "select attname, format_type(atttypid, atttypmod) from pg_attribute "
            "where attrelid = $1::regclass and attnum > 0 and not attisdropped order by attnum",
            (table.as_string(connection),),
        )
        return list(cursor.fetchall())


def _count(results: ArrowConnection, connection: Connection, query: sql.Composable) -> int:
    with results.cursor() as cursor:
        cursor.execute(query.as_string(connection))
        return int(cursor.fetchone()[0])
