"""A part of one partition whose records an audit compares with rows together."""

from dataclasses import dataclass

from psycopg2 import sql


@dataclass(frozen=True, slots=True)
class OffsetWindow:
    """Records of one partition, from the first to the last offset."""

    topic: str
    partition: int
    first: int
    last: int

    def has(self, row: str) -> sql.Composable:
        """Return a condition for rows of the lineage table in this window."""
        return sql.SQL(
            "{row}.kafka_topic = {topic} and {row}.kafka_partition = {partition} "
            "and {row}.kafka_offset between {first} and {last}"
        ).format(
            row=sql.Identifier(row),
            topic=sql.Literal(self.topic),
            partition=sql.Literal(self.partition),
            first=sql.Literal(self.first),
            last=sql.Literal(self.last),
        )
