"""The audit of an Upsert's target: it must hold the latest change of each key.

This is written independently of latest_changes.py, which it checks, and shares no code with it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.sinks.base import Comparison
from exactbatch.sinks.values.audited_casts import lost
from exactbatch.sinks.values.null_safe_groups import column_list

# True of a change that the target's types cannot hold.
_LOST: Final = sql.Identifier("exactbatch Lost")


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
    the columns, all that both tables have are compared.
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
    expected = sql.SQL(
        "select {values} from (select {names}, deleted, row_number() over (partition by {key} order by {version}"
        "kafka_topic desc, kafka_partition desc, kafka_offset desc) as rank "
        "from {changes}) ranked where rank = 1 and not deleted"
    ).format(
        # The target's types may be narrower than those of the changes.
        values=sql.SQL(", ").join(
            [
                *(
                    sql.SQL("{0}::{1} as {0}").format(sql.Identifier(name), sql.SQL(type_))
                    for name, type_ in types.items()
                ),
                *([sql.SQL("{} as {}").format(sql.SQL(" or ").join(losses), _LOST)] if losses else []),
            ]
        ),
        names=column_list(types),
        key=column_list(key),
        version=sql.Composed(
            [sql.SQL("{0} is null, {0} desc, ").format(sql.Identifier(name)) for name in version]
        ),
        changes=changes,
    )
    return Comparison(
        expected=expected,
        actual=sql.SQL("select {} from {}").format(column_list(types), target),
        actual_count=sql.SQL("select count(*) from {}").format(target),
        same_row=sql.SQL(" and ").join(sql.SQL("m.{0} = t.{0}").format(sql.Identifier(name)) for name in key),
        compared=[*types],
        also_wrong=sql.SQL("m.{}").format(_LOST) if losses else None,
    )
