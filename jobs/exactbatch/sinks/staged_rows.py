"""The staged rows of a batch, as publish hands them to a sink."""

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg2 import sql


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of a staging table that task attempts of a batch have written and Spark has accepted.

    table     the staging table as an SQL identifier; its rows have the columns that the sink stages, the lineage
              of the record (kafka_topic, kafka_partition, kafka_offset, kafka_timestamp), and task_attempt
    rows      how many rows each accepted task attempt has staged; rows of others do not count
    """

    table: sql.Composable
    batch_id: int
    rows: Mapping[int, int]

    @property
    def accepted(self) -> sql.Composable:
        """The condition of the rows that count."""
        # A literal rather than a parameter: psycopg2 would look for parameters in a name with a % as well.
        return sql.SQL("task_attempt = any({})").format(sql.Literal(list(self.rows)))

    @property
    def count(self) -> int:
        """How many rows count."""
        return sum(self.rows.values())
