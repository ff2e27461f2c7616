"""What a broker reports of a partition, for tests without a broker."""

from typing import Final
from uuid import UUID

from exactbatch.model import LogPartition

ID: Final = UUID(int=1)


def log(
    partition: int = 0,
    *,
    topic: str = "t",
    topic_id: UUID = ID,
    earliest: int = 0,
    last_stable: int = 100,
    high_watermark: int | None = None,
    leader_epoch: int | None = 7,
) -> LogPartition:
    """Return a partition with offsets 0 to 99, unless told otherwise; no transaction is open."""
    return LogPartition(
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        leader_epoch=leader_epoch,
        earliest=earliest,
        last_stable=last_stable,
        high_watermark=last_stable if high_watermark is None else high_watermark,
    )
