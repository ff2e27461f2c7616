"""The stores of the ledger, on one connection, and the batches that the results of ranges come from.

A connection is closed at the end of a block, and a transaction may be bound to a pipeline.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

from exactbatch.coverage import Coverage, covered_parts
from exactbatch.ledger.batches import Batches
from exactbatch.ledger.covered_offsets import CoveredOffsets
from exactbatch.ledger.fingerprints import Fingerprints
from exactbatch.ledger.plans import Plans
from exactbatch.ledger.registry import Registry
from exactbatch.ledger.rejects import Rejects
from exactbatch.ledger.statements import load_queries
from exactbatch.model import Covered
from exactbatch.offsets import OffsetRange
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection, Cursor, connect, transaction
from exactbatch.sinks.capabilities import KeepsLatest
from exactbatch.sinks.staged_rows import Part
from exactbatch.sinks.writers import find_writer

_QUERIES: Final = load_queries("session")


class Ledger:
    """What most steps of a batch read and write, through one psycopg2 connection; the caller owns the transaction.

    What few steps need has a store or a function in a module of its own, such as streams.py.
    """

    def __init__(self, connection: Connection) -> None:
        self.registry = Registry(connection)
        self.plans = Plans(connection)
        self.batches = Batches(connection)
        self.coverage = CoveredOffsets(connection)
        self.rejects = Rejects(connection)
        self.fingerprints = Fingerprints(connection)


def find_parts(
    cursor: Cursor, pipeline: Pipeline, ranges: Sequence[OffsetRange], covered: Sequence[Covered]
) -> list[Part]:
    """Return each range with the batches that its results come from, ascending; `covered` is its coverage.

    Where batches were folded, these are the folded batches of the pipeline that have rows or rejects in the range.
    With lineage="batch", rows do not tell: folded batches are left out.
    """
    parts: list[Part] = [*covered_parts(ranges, covered)]
    folded = Coverage(row for row in covered if row.kind == "pruned")
    positions = [position for position, range_ in enumerate(ranges) if folded.overlapping(range_)]
    if not positions or pipeline.traits.lineage == "batch":
        return parts
    over_folded = [ranges[position] for position in positions]
    writer = find_writer(pipeline.traits)
    tables = [part.lineage_table for part in writer.parts]
    tables += [writer.markers] if isinstance(writer, KeepsLatest) else []
    with_rows = zip(*(table.batches_in(cursor, over_folded) for table in tables), strict=True)
    ledger = Ledger(cursor.connection)
    with_rejects = ledger.rejects.find_batches(pipeline, over_folded)
    found = [with_rejects.get(number, set()).union(*ids) for number, ids in enumerate(with_rows)]
    known = ledger.batches.find_folded(pipeline, set().union(*found))
    for position, ids in zip(positions, found, strict=True):
        range_, named = parts[position]
        parts[position] = range_, tuple(sorted({*named, *(ids & known)}))
    return parts


@contextmanager
def ledger_session(dsn: str, application: str, pipeline: Pipeline | None = None) -> Iterator[Connection]:
    """Yield a connection to the database that has the ledger, and close it at the end.

    `application` is the name that pg_stat_activity shows. With a `pipeline`, its lock_timeout and its
    statement_timeout apply; otherwise the defaults of connect().

    Raises as connect() does. It does not check the version of the ledger: check_schema() does.
    """
    if pipeline is None:
        connection = connect(dsn, application=application)
    else:
        connection = connect(
            dsn,
            application=application,
            timeout=pipeline.tuning.lock_seconds,
            statement_timeout=pipeline.tuning.statement_seconds,
        )
    with closing(connection):
        yield connection


@contextmanager
def target_transaction(connection: Connection, pipeline: Pipeline) -> Iterator[Cursor]:
    """Run a block that reads or writes a pipeline's target in a transaction, as transaction() does.

    Code of whoever owns the target runs in it: see bind_transaction().
    """
    with transaction(connection) as cursor:
        bind_transaction(connection, pipeline)
        yield cursor


def bind_transaction(connection: Connection, pipeline: Pipeline) -> None:
    """Let the open transaction write rows of this pipeline only, until it ends; nothing can undo this.

    For a transaction on a target: code of whoever owns the target runs in it with the rights of this login.
    """
    _QUERIES.bind_transaction(connection, pipeline=pipeline.name)
