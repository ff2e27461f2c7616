"""The members of many tables, which share one DAG, as pipelines of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from exactbatch.airflow.page.dags import PipelineDag
from exactbatch.ledger import Ledger
from exactbatch.postgres.connection import Connection, transaction


def with_members(
    connection: Connection, dags: Sequence[PipelineDag], owners: Mapping[str, bool]
) -> list[PipelineDag]:
    """Return the DAGs with, in the place of each DAG of many tables, one entry for each registered member.

    A DAG of many tables stays if none of them is registered. `owners` are the names of all pipelines
    and tables with a DAG, shown or not, and whether each stands for many tables: what another DAG runs is no member.
    """
    if not any(dag.is_tables for dag in dags):
        return list(dags)
    with transaction(connection):
        names = [each.name for each in Ledger(connection).registry.read_all()]
    found = []
    for dag in dags:
        members = [name for name in names if dag.is_tables and _find_owner(name, owners) == dag.pipeline]
        found += [replace(dag, member=name) for name in members] or [dag]
    return found


def _find_owner(name: str, owners: Mapping[str, bool]) -> str:
    """Return the owner of a pipeline: itself, or the tables with the longest prefix of its name; "" for none."""
    if name in owners:
        return name
    prefix = name.rpartition(".")[0]
    while prefix and not owners.get(prefix):
        prefix = prefix.rpartition(".")[0]
    return prefix
