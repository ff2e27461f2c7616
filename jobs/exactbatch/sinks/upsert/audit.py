"""The audit of an Upsert's target: it must hold the latest change of each key.

This is written independently of latest_changes.py, which it checks, and shares no code with it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.columns import UNAVAILABLE_COLUMNS, Column
from exactbatch.sinks.capabilities import Comparison
from exactbatch.sinks.values.audited_casts import lost
from exactbatch.sinks.values.null_safe_groups import column_list, same_values

# True of a change that the target's types cannot hold.
_LOST: Final = sql.Identifier("exactbatch Lost")
_RANK: Final = sql.Identifier("exactbatch rank")
_THERE: Final = sql.Identifier("exactbatch there")
_UNAVAILABLE: Final = sql.Identifier(UNAVAILABLE_COLUMNS)


def compare_with_changes(
    target: sql.Composable,
    changes: sql.Composable,
    key: Sequence[str],
    version: Sequence[str],
    *,
    columns: Sequence[Column] | None,
    target_types: Mapping[str, str],
    change_types: Mapping[str, str],
) -> Comparison:
    """Compare the target with the latest changes, in the columns of the pipeline that both tables have.

    A target may have other columns, which the pipeline no longer writes, or never wrote. If a transform defines
    the columns, all that both tables have are compared. A value that the source left out of the latest change is that
    of the newest other change of the key that has it. A key has no row either if its latest change is not later than
    the last truncate; a truncate is a change without a key.
    """
    own_names = None if columns is None else {column.name for column in columns}
    types = {
        name: type_
        for name, type_ in target_types.items()
        if name in change_types and (own_names is None or name in own_names)
    }
    losses = [
        loss
        for name, type_ in types.items()
        if (loss := lost(sql.Identifier(name), change_types[name], type_)) is not None
    ]
    order = sql.Composed(
        [
            *(sql.SQL("{0} is null, {0} desc, ").format(sql.Identifier(name)) for name in version),
            sql.SQL("kafka_topic desc, kafka_partition desc, kafka_offset desc"),
        ]
    )
    latest = sql.SQL(
        "select {names}{unavailable} from (select {all_names}, deleted{unavailable}, "
        "row_number() over (partition by {key} order by {order}) as {rank} from {changes}) ranked{truncates} "
        "where {rank} = 1 and not deleted{after_truncates}"
    ).format(
        names=column_list(types, of="ranked"),
        all_names=column_list(dict.fromkeys([*types, *version])),
        truncates=_last_truncate(changes, key, version, order),
        after_truncates=_after_truncates(version),
        unavailable=sql.SQL(", {}").format(_UNAVAILABLE)
        if UNAVAILABLE_COLUMNS in change_types
        else sql.SQL(""),
        key=column_list(key),
        order=order,
        rank=_RANK,
        changes=changes,
    )
    if UNAVAILABLE_COLUMNS in change_types:
        latest = sql.SQL("select {} from ({}) latest").format(
            sql.SQL(", ").join(_with_older(name, changes, key, order) for name in types), latest
        )
    expected = sql.SQL("select {values} from ({latest}) latest").format(
        # The target's types may be narrower than the types of the changes.
        values=sql.SQL(", ").join(
            [
                *(
                    sql.SQL("{0}::{1} as {0}").format(sql.Identifier(name), sql.SQL(type_))
                    for name, type_ in types.items()
                ),
                *([sql.SQL("{} as {}").format(sql.SQL(" or ").join(losses), _LOST)] if losses else []),
            ]
        ),
        latest=latest,
    )
    return Comparison(
        expected=expected,
        actual=sql.SQL("select {} from {}").format(column_list(types), target),
        actual_count=sql.SQL("select count(*) from {}").format(target),
        same_row=same_values(key, "m", "t"),
        compared=[*types],
        also_wrong=sql.SQL("m.{}").format(_LOST) if losses else None,
    )


def _last_truncate(
    changes: sql.Composable, key: Sequence[str], version: Sequence[str], order: sql.Composable
) -> sql.Composable:
    """Return what to join with changes: the version of the last truncate, in one row or none."""
    if not version:
        return sql.SQL("")
    return sql.SQL(
        " left join (select true as {there}, {version} from {changes} where num_nonnulls({key}) = 0 "
        "and {first_key} is null order by {order} limit 1) truncated on true"
    ).format(
        there=_THERE,
        version=column_list(version),
        changes=changes,
        key=column_list(key),
        first_key=sql.Identifier(key[0]),
        order=order,
    )


def _after_truncates(version: Sequence[str]) -> sql.Composable:
    """Return the condition, from its ` and ` on, that there is no truncate, or that a change is later than the last."""
    if not version:
        return sql.SQL("")
    later: sql.Composable = sql.SQL("false")
    for name in reversed(version):
        later = sql.SQL(
            "(coalesce(ranked.{0} > truncated.{0}, ranked.{0} is not null and truncated.{0} is null) "
            "or ranked.{0} is not distinct from truncated.{0} and {1})"
        ).format(sql.Identifier(name), later)
    return sql.SQL(" and (truncated.{} is null or coalesce({}, false))").format(_THERE, later)


def _with_older(
    name: str, changes: sql.Composable, key: Sequence[str], order: sql.Composable
) -> sql.Composable:
    """Return a column of the latest change, or its value in another change if the source left it out."""
    column = sql.Identifier(name)
    if name in key:
        return column
    return sql.SQL(
        "case when array_position(latest.{unavailable}, {name}) is null then latest.{column} else ("
        "select other.{column} from {changes} other where {same_key} and not other.deleted "
        "and array_position(other.{unavailable}, {name}) is null order by {order} limit 1) end as {column}"
    ).format(
        unavailable=_UNAVAILABLE,
        name=sql.Literal(name),
        column=column,
        changes=changes,
        same_key=same_values(key, "other", "latest"),
        order=order,
    )
