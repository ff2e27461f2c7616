"""What a pipeline makes of records."""

from dataclasses import dataclass, field
from functools import cached_property

from exactbatch.pipeline import Pipeline

Row = dict[str, object]


@dataclass(frozen=True)
class Reject:
    """A record that gave no row, and the reason that exactbatch.rejected_record would have."""

    topic: str
    partition: int
    offset: int
    reason: str
    value: bytes | None
    key: bytes | None


@dataclass(frozen=True)
class Loaded:
    """What one batch of a pipeline makes of records.

    rows        the decoded rows, with Python values, by topic, partition and offset; for an Upsert they are changes,
                with the column `deleted`
    rejects     the records that gave no row, by topic, partition and offset
    records     how many records there were: those with rows + rejects + tombstones + dropped
    tombstones  how many had a null value, and gave no row
    dropped     how many decoded and gave no row: an array without elements, or a transform that left them out
    """

    pipeline: Pipeline = field(repr=False)
    rows: list[Row]
    rejects: list[Reject]
    records: int
    tombstones: int
    dropped: int

    @cached_property
    def target(self) -> list[Row]:
        """The rows that the target has afterwards, if it was empty before."""
        return self.rows
