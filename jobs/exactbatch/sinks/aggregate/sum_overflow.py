"""Explain the error of a sum that is too great for its column."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg2

from exactbatch.errors import TargetMismatch
from exactbatch.sinks.tables.target import TargetTable

# Postgres's message for floating point numbers alone.
_DOUBLE_OVERFLOW: Final = "value out of range: overflow"


@contextmanager
def explained_overflow(target: TargetTable, partials: TargetTable) -> Iterator[None]:
    """Turn an overflow within the block into a TargetMismatch that says which type the columns need."""
    try:
        yield
    except (psycopg2.errors.NumericValueOutOfRange, TargetMismatch) as error:
        cause = error.__cause__ if isinstance(error, TargetMismatch) else error
        if not isinstance(cause, psycopg2.errors.NumericValueOutOfRange):
            raise
        alter = (
            f"the column the type numeric in {target.spec} and {partials.spec}: alter table … "
            f"alter column … type numeric;"
        )
        is_double = cause.diag.message_primary == _DOUBLE_OVERFLOW
        remedy = (
            f"A double precision holds at most 1.8e308. Declare the summed column numeric in the pipeline, "
            f"and give {alter}"
            if is_double
            else f"Give {alter}"
        )
        raise TargetMismatch(
            f"target {target.spec}: a sum is too great for the type of its column: "
            f"{cause.diag.message_primary}. Nothing was written. {remedy}",
            sqlstate=cause.pgcode,
        ) from error
