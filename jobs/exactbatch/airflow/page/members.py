"""The members of many tables, which share one DAG, as pipelines of their own."""

from collections.abc import Sequence
from dataclasses import replace

from exactbatch.airflow.page.dags import PipelineDag
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import Connection, transaction


def with_members(connection: Connection, dags: Sequence[PipelineDag]) -> list[PipelineDag]:
    """Return the DAGs with, in the place of each DAG of many tables, one entry for each registered member.

    A DAG of many tables none of which is registered stays. A name that has a DAG of its own is no member.
    """
    if not any(dag.is_tables for dag in dags):
        return list(dags)
    with transaction(connection):
        names = [each.name for each in Ledger(connection).registered()]
    own = {dag.dag_id for dag in dags}
    found = []
    for dag in dags:
        prefix = f"{dag.dag_id}."
        members = [name for name in names if dag.is_tables and name.startswith(prefix) and name not in own]
        found += [replace(dag, member=name) for name in members] or [dag]
    return found
