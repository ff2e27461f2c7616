"""Test a pipeline without Kafka: give it records, and get rows, rejects and the rows of its target."""

from collections.abc import Iterable, Mapping
from typing import Any

from exactbatch.errors import ConfigurationError
from exactbatch.pipeline import Pipeline
from exactbatch.testing.record import DecodedRecords, Given, Loaded, Record, Reject

__all__ = ["DecodedRecords", "Loaded", "Record", "Reject", "decode", "load"]


def decode(
    pipeline: Pipeline, records: Iterable[Given], *, kafka: Mapping[str, Any] | None = None
) -> DecodedRecords:
    """Return what a pipeline's decoders, and its transform, make of records, without any server.

    The records take the offsets 0, 1, 2, … of their partition in the order in which they are given. Bytes, text, or
    None for a null value, stand for a Record with this value. Spark in local mode runs a transform.

    kafka  properties of the schema registry's client, for a format that reads schemas from a registry

    Postgres may refuse more: `unverified` names the columns whose values it checks, and a pipeline with `checks` is an
    error. Raises what a batch raises, such as TransformFailed; and ConfigurationError for a topic that the pipeline
    does not load.
    """
    # Tests import this module when they are collected; only one that runs needs Arrow, and what a batch does.
    from exactbatch.testing.decode_records import build_result, stage_batches

    batches = stage_batches(pipeline, [records], kafka)
    if pipeline.row_checks:
        raise ConfigurationError(
            f"pipeline {pipeline.name!r} has checks, and Postgres alone can evaluate them. Use load()."
        )
    columns = batches[0].columns
    unverified = {column.name: column.type for column in columns if column.staged_type != column.type}
    return DecodedRecords(**build_result(batches), unverified=unverified)


def load(
    pipeline: Pipeline,
    *batches: Iterable[Given],
    replay: Pipeline | None = None,
    postgres: str | None = None,
    kafka: Mapping[str, Any] | None = None,
) -> Loaded:
    """Return what batches of a pipeline make of records, and what its target holds afterwards.

    The records and `kafka` are those of decode(). Each batch continues where the one before it ended. Postgres rejects
    what it cannot store, evaluates `checks` and fills the target, with the statements of a batch and within one
    transaction that is rolled back: nothing is left behind.

    replay    the pipeline with which all records are replayed afterwards; its rows and rejects are then the result
    postgres  the connection string of a database for tests, which must have no ledger. Without it, a Postgres starts
              for all tests of this process, and ends with it; the extra `local` has it

    Raises what decode() raises, and what a batch raises before it reads records, such as TargetMismatch.
    """
    # As in decode().
    from exactbatch.testing.in_postgres import load_batches, start_server

    return load_batches(pipeline, batches, replay, postgres or start_server(), kafka)
