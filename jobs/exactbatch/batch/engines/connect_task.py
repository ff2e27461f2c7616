"""The work of a Spark Connect server for a batch: tasks over ranges, each in a Python worker of its own."""

import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from exactbatch.batch.staging.outcomes import dump
from exactbatch.batch.staging.shares import run_share
from exactbatch.code_identity import code_identity
from exactbatch.errors import ConfigurationError, ExactbatchError


def build_remote_task(
    shares: list[bytes], identity: str, variables: Mapping[str, str]
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return the function for mapInArrow: it runs the share that each input row names, and returns the outcomes.

    The function itself must be readable by any version of this package, so it refers to nothing but run_pickled().
    """
    variables = dict(variables)

    def run(batches: Iterable[Any]) -> Iterator[Any]:  # in a worker of the server
        # The server unpickles this function alone: it finds here what it needs.
        import pyarrow

        from exactbatch.batch.engines.connect_task import run_pickled

        for batch in batches:
            for index in batch.column(0).to_pylist():
                for outcome in run_pickled(shares[index], identity, variables):
                    column = pyarrow.array([outcome], pyarrow.binary())
                    yield pyarrow.RecordBatch.from_arrays([column], ["outcome"])

    return run


def run_pickled(share: bytes, identity: str, variables: Mapping[str, str]) -> Iterator[bytes]:
    """Run a share, which is a pickled function and its tasks; yield each task's outcome, or why none may run here.

    `identity` is the code that the client runs, `variables` the environment in which Python functions must run.
    """
    refused = _refusal(identity, variables)
    if refused is not None:
        yield dump(refused)
        return
    os.environ["TZ"] = variables["TZ"]  # the worker ends with this task
    time.tzset()
    yield from run_share(*pickle.loads(share))


def _refusal(identity: str, variables: Mapping[str, str]) -> ExactbatchError | None:
    """Return why this worker must not run a task of the client, if it must not."""
    if code_identity() != identity:
        return ConfigurationError(
            f"the Spark Connect server runs exactbatch {code_identity()}, and this client {identity}. Nothing was "
            f"written. Install the same version on both, and restart the server."
        )
    if os.environ.get("SPARK_REUSE_WORKER"):
        return ConfigurationError(
            "the Spark Connect server has spark.python.worker.reuse = true, so a worker could run an old version "
            "of a pipeline's functions. Nothing was written. Start the server with `exactbatch connect`, or with "
            "spark.python.worker.reuse=false."
        )
    if os.environ.get("PYTHONHASHSEED") != variables["PYTHONHASHSEED"]:
        return ConfigurationError(
            f"the Spark Connect server runs Python with PYTHONHASHSEED = {os.environ.get('PYTHONHASHSEED')}, and "
            f"this batch needs {variables['PYTHONHASHSEED']}, so that hash() returns the same in a retry. Nothing was "
            f"written. Start the server with `exactbatch connect`, or set it in the server's environment and as "
            f"spark.executorEnv.PYTHONHASHSEED."
        )
    return None
