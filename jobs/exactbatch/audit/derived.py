"""Compare the rows of a derived target with those that its lineage table gives; all are computed again.

The sink writes the queries, apart from the code that derives the target. Values are compared as the bytes that
Postgres stores, because its `=` holds for values that differ: text in another case, an interval of 30 days and a
month, 1.0 and 1.00. Rows are paired by their keys, with `=`, as a unique constraint does; keys are compared by
that alone unless the sink names them among the compared columns.
"""

from collections.abc import Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.audit.snapshot import Snapshot
from exactbatch.pipeline import Pipeline
from exactbatch.sinks.capabilities import ComparesTarget, Comparison
from exactbatch.sinks.values.null_safe_groups import column_list
from exactbatch.sinks.writer import SinkWriter

# How many expected and actual rows have no counterpart or other bytes, and how many have several counterparts.
_DIFFERENCE: Final = (
    "select count(*) filter (where m.{present} is null or t.{present} is null or {differ}) "
    "+ count(*) filter (where m.{present}) - (select count(*) from expected) "
    "+ count(*) filter (where t.{present}) - ({actual_count}) "
    "from (select *{image}, true as {present} from expected) m "
    "full join (select *{image}, true as {present} from actual) t on {same_row}"
)
_PRESENT: Final = sql.Identifier("exactbatch present")
_IMAGE: Final = sql.Identifier("exactbatch image")
_MOST_COLUMNS: Final = 800


def stale_rows(snapshot: Snapshot, pipeline: Pipeline, writer: SinkWriter) -> int:
    """Return how many keys have a wrong row in a derived target, or lack one."""
    if not isinstance(writer, ComparesTarget):
        return 0
    comparison = writer.compare_target(
        None if pipeline.is_transformed else pipeline.value.columns,
        snapshot.list_types(writer.tables[-1].identifier),
        snapshot.list_types(writer.lineage_table.identifier),
    )
    query = sql.SQL("with expected as ({}), actual as ({}) {}").format(
        comparison.expected, comparison.actual, difference(comparison)
    )
    return int(snapshot.rows(query)[0][0])


def difference(comparison: Comparison) -> sql.Composable:
    """Return a query that counts what differs between the CTEs `expected` and `actual` of a comparison."""
    conditions: list[sql.Composable] = []
    image: sql.Composable = sql.SQL("")
    if comparison.compared:
        image, differ = images_differ(comparison.compared, "m", "t")
        conditions.append(differ)
    if comparison.also_wrong is not None:
        conditions.append(comparison.also_wrong)
    return sql.SQL(_DIFFERENCE).format(
        present=_PRESENT,
        image=image,
        same_row=comparison.same_row,
        differ=sql.SQL(" or ").join(conditions or [sql.SQL("false")]),
        actual_count=comparison.actual_count,
    )


def images_differ(names: Sequence[str], one: str, other: str) -> tuple[sql.Composable, sql.Composable]:
    """Return what to add to the columns of two relations that are joined, and the condition that columns of the two
    differ in any byte.

    A join has at most 1,664 columns: of many, the bytes become one column of each relation.
    """
    if len(names) <= _MOST_COLUMNS:
        columns = [column_list(names, of=each) for each in (one, other)]
        return sql.SQL(""), sql.SQL("record_image_ne(row({}), row({}))").format(*columns)
    image = sql.SQL(", row({}) as {}").format(column_list(names), _IMAGE)
    return image, sql.SQL("record_image_ne({}, {})").format(
        *(sql.SQL(".").join([sql.Identifier(each), _IMAGE]) for each in (one, other))
    )
