"""Keep a few processed records of each partition, by which another log is noticed."""

from collections.abc import Sequence
from typing import Final

from exactbatch.ledger.statements import Store, columns, load_queries
from exactbatch.model import Fingerprint

_QUERIES: Final = load_queries("fingerprints")
_FINGERPRINT: Final = ("topic", "topic_id", "partition", "offset", "timestamp", "digest")


class Fingerprints(Store):
    """The rows of exactbatch.fingerprint."""

    def read(self, pipeline: str) -> tuple[Fingerprint, ...]:
        """Return all fingerprints of a pipeline."""
        return tuple(
            Fingerprint(row.topic, row.partition, row.topic_id, row.offset, row.timestamp, bytes(row.digest))
            for row in _QUERIES.fingerprints(self._connection, pipeline=pipeline)
        )

    def add(self, pipeline: str, fingerprints: Sequence[Fingerprint]) -> None:
        """Add fingerprints, and delete older ones: at most eight of each partition remain, at distances behind the
        newest that grow by a factor of 16."""
        if not fingerprints:
            return
        added = columns(fingerprints, *_FINGERPRINT)
        _QUERIES.insert_fingerprints(self._connection, pipeline=pipeline, **added)
        _QUERIES.thin_fingerprints(
            self._connection, pipeline=pipeline, topic_id=added["topic_id"], partition=added["partition"]
        )
