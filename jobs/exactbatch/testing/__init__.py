"""Test a pipeline without servers: give it records, and get rows, rejects and the rows of its target."""

from collections.abc import Iterable, Mapping
from typing import Any

from exactbatch.errors import ConfigurationError
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings
from exactbatch.testing.loaded import Loaded, Reject
from exactbatch.testing.record import Record, placed

__all__ = ["Loaded", "Record", "Reject", "load"]


def load(
    pipeline: Pipeline,
    records: Iterable[Record | bytes | str | None],
    *,
    postgres: str | None = None,
    kafka: Mapping[str, Any] | None = None,
) -> Loaded:
    """Return what one batch of a pipeline makes of records, without Kafka; without Postgres unless you name one.

    The records take the offsets 0, 1, 2, … of their partition in the order in which they are given. Bytes, text, or
    None for a null value, stand for a Record with this value. The pipeline's own decoders decode them, and Spark in
    local mode runs a transform.

    postgres  the connection string of a database for tests. It checks values, evaluates `checks`, and computes the
              target, within one transaction that is rolled back: nothing is left behind. It must have no ledger.
              Without it, `unverified` names the columns whose values may still be refused, and a pipeline with
              `checks` is an error
    kafka     properties of the schema registry's client, for a format that reads schemas from a registry

    Raises what a batch raises, such as TransformFailed; and ConfigurationError for a topic that the pipeline does not
    load, and for what only Postgres can decide.
    """
    # These import pyarrow, and transform imports PySpark.
    from exactbatch.testing.decoding import decode

    if not isinstance(pipeline, Pipeline):
        raise ConfigurationError(
            f"expected a Pipeline, found {type(pipeline).__name__}. Of Tables, test a member: "
            f"tables.member('topic')."
        )
    given = placed(pipeline, records)
    staged = decode(pipeline, given, Settings(kafka or {}, postgres or ""))
    if pipeline.is_transformed:
        from exactbatch.testing.transform import transformed

        staged = transformed(staged)
    if postgres is not None:
        from exactbatch.testing.in_postgres import loaded_in_postgres

        return loaded_in_postgres(staged, postgres)
    from exactbatch.testing.targets import loaded_without_postgres

    return loaded_without_postgres(staged)
