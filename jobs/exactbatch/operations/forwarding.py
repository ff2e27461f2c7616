"""How far the results of a pipeline are sent to its topic."""

from dataclasses import dataclass
from datetime import datetime

from exactbatch.ledger import Streams


@dataclass(frozen=True, slots=True)
class Forwarding:
    """The results of a pipeline that go to a topic.

    sent_sequence  the topic has all results up to this number
    unsent         how many later ones were committed
    oldest         when the oldest of these was committed; None if there is none
    sent_at        when results were last sent; None before the first time
    """

    topic: str
    sent_sequence: int
    unsent: int
    oldest: datetime | None
    sent_at: datetime | None

    def __str__(self) -> str:
        if not self.unsent:
            return f"the topic {self.topic} has all {self.sent_sequence:,} results"
        lacks = f"the topic {self.topic} lacks {self.unsent:,} results"
        if self.oldest is None:
            return lacks
        return f"{lacks}, of which the oldest was committed at {self.oldest:%Y-%m-%d %H:%M:%S} UTC"


def load_forwarding(streams: Streams, pipeline: str) -> Forwarding | None:
    """Return how far results are sent; None if the pipeline of this name forwards none."""
    if (stream := streams.read(pipeline)) is None:
        return None
    return Forwarding(
        stream.topic,
        stream.sent_sequence,
        stream.unsent,
        streams.find_oldest_unsent(pipeline),
        stream.sent_at,
    )
