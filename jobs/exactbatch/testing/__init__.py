"""Test a pipeline without servers: give it records, and get rows, rejects and the rows of its target."""

from collections.abc import Iterable

from exactbatch.pipeline import Pipeline
from exactbatch.testing.loaded import Loaded, Reject
from exactbatch.testing.record import Record, placed

__all__ = ["Loaded", "Record", "Reject", "load"]


def load(pipeline: Pipeline, records: Iterable[Record | bytes | str | None]) -> Loaded:
    """Return what one batch of a pipeline makes of records, without Kafka and Postgres.

    The records take the offsets 0, 1, 2, … of their partition in the order in which they are given. Bytes, text, or
    None for a null value, stand for a Record with this value. The pipeline's own decoders decode them.

    Raises what a batch raises: ConfigurationError for a topic that the pipeline does not load, and the errors of the
    format.
    """
    from exactbatch.testing.decoding import decode  # it imports pyarrow

    return decode(pipeline, placed(pipeline, records))
