"""COPY of Arrow batches into Postgres through ADBC, on an executor or the driver."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from exactbatch.batch.rejects import PendingRejects
from exactbatch.postgres.arrow import ArrowCursor

APPLICATION: Final = "exactbatch task"  # as pg_stat_activity shows a task


def copy_batches(
    cursor: ArrowCursor, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], **options: Any
) -> int:
    """COPY batches into a table; return the number of rows sent. `options` are those of adbc_ingest().

    Raises whatever the iterator raises: ADBC would wrap it, and cut its text.
    """
    raised: list[Exception] = []

    def checked() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            raised.append(error)
            raise

    reader = pa.RecordBatchReader.from_batches(schema, checked())
    try:
        return int(cursor.adbc_ingest(table, reader, **options))
    except Exception as error:
        if raised:
            raise raised[0] from error
        raise


def copy_in_turns(
    rows: Iterator[pa.RecordBatch],
    pending: PendingRejects,
    copy_rows: Callable[[Iterator[pa.RecordBatch]], None],
    copy_rejects: Callable[[list[pa.RecordBatch]], None],
) -> None:
    """Copy rows and, whenever the pending rejects that come with them are full, the rejects, on one connection."""
    ended = False

    def until_full() -> Iterator[pa.RecordBatch]:
        nonlocal ended
        for batch in rows:
            yield batch
            if pending.is_full:
                return
        ended = True

    while not ended:
        copy_rows(until_full())
        if batches := pending.take():
            copy_rejects(batches)
