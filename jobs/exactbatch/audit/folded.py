"""Rows of batches that exactbatch prune has folded: the ledger knows their pipelines, and no longer their ranges."""

from collections.abc import Sequence

from psycopg2 import sql

from exactbatch.audit.covering import FOLDED
from exactbatch.audit.snapshot import Snapshot


def has_folded(snapshot: Snapshot, pipelines: Sequence[str]) -> bool:
    """True if any batch of the pipelines is folded."""
    query = sql.SQL(
        "select exists (select from exactbatch.batch where pipeline = any({}::text[]) and pruned is not null)"
    )
    return bool(snapshot.rows(query.format(sql.Literal(list(pipelines))))[0][0])


def is_folded(batch_id: sql.Composable, pipelines: Sequence[str]) -> sql.Composable:
    """Return the condition that a batch belongs to the pipelines and is folded."""
    return sql.SQL(
        "exists (select from exactbatch.batch f where f.batch_id = {} and f.pipeline = any({}::text[]) "
        "and f.pruned is not null)"
    ).format(batch_id, sql.Literal(list(pipelines)))


def covering_batch(batch_id: sql.Composable, pipeline: str) -> sql.Composable:
    """Return the batch of a row as coverage names it: FOLDED for a folded batch of the pipeline."""
    return sql.SQL("case when {} then {} else {} end").format(
        is_folded(batch_id, [pipeline]), sql.Literal(FOLDED), batch_id
    )
