"""The engine of a long-lived Spark Connect server: a batch needs no JVM of its own.

The client has no SparkContext: tasks run as mapInArrow over one row for each task. Nothing of this reaches the server's
configuration; secrets travel in the pickled function: Spark's pages and logs show eight bytes of it. What the server
answers is data: nothing of it is unpickled.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final

import grpc
import pyarrow as pa
import pyspark
from pyspark.cloudpickle import dumps
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkAssertionError,
    PySparkException,
)
from pyspark.sql.connect.client.core import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from exactbatch.batch.engines.connect_server import ARTIFACT_ISOLATION
from exactbatch.batch.engines.connect_task import build_remote_task
from exactbatch.batch.engines.connect_url import check_pipeline, find_address
from exactbatch.batch.spark.pyspark_packages import check_pyspark, find_minor_version
from exactbatch.batch.spark.spark_errors import LACKS_MODULE, OTHER_VERSION, cause, find_refused_setting
from exactbatch.batch.spark.spark_settings import build_variables
from exactbatch.batch.spark.waiting_jobs import Progress, cancel_waiting_jobs
from exactbatch.batch.staging.shares import Outcome, Task, distribute, loaded
from exactbatch.batch.staging.stager import Stager
from exactbatch.batch.staging.task import StageTask
from exactbatch.code_identity import code_identity
from exactbatch.errors import ConfigurationError, ExactbatchError, TasksFailed
from exactbatch.pipeline import Pipeline
from exactbatch.postgres.connection import Connection

logger = logging.getLogger(__name__)

# A server that does not answer is asked again for half a minute; PySpark's default is ten minutes.
_RETRIES: Final = DefaultPolicy(max_retries=6, max_backoff=10_000)
# A dead network ends a call. The server disconnects clients that ask more often than every five minutes.
_CHANNEL: Final = [("grpc.keepalive_time_ms", 310_000), ("grpc.keepalive_timeout_ms", 20_000)]
_RESTARTED: Final = "INVALID_HANDLE.SESSION_"
_OTHER_PYTHON: Final = re.compile(f"{OTHER_VERSION}|{LACKS_MODULE}")
_NUMBERS: Final = StructType([StructField("id", LongType(), nullable=False)])
_OUTCOME: Final = StructType([StructField("outcome", BinaryType())])


class ConnectEngine:
    """The Engine of a Spark Connect server, `sc://host:port/;token=…`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.address = find_address(url)
        self._session: SparkSession | None = None

    def __repr__(self) -> str:
        return f"ConnectEngine({self.address!r})"

    def interrupt(self) -> None:
        """End what the server runs for this client: a signal handler calls it. Logs a failure."""
        if self._session is None:
            return
        try:
            self._session.interruptAll()
        except Exception as error:
            logger.warning("%s was not interrupted: %s", self.address, _reason(error))

    @contextmanager
    def executors(self, pipeline: Pipeline, where: str) -> "Iterator[ConnectExecutors]":
        """Open a session on the server for one batch.

        Raises ConfigurationError for a pipeline that needs a Spark driver, for a server of another minor version, and
        for a PySpark with files of two versions.
        """
        check_pipeline(pipeline)
        check_pyspark()
        with self._open() as session:
            executors = ConnectExecutors(session, pipeline, self.address)
            with cancel_waiting_jobs(
                executors.progress, executors.cancel, pipeline.tuning.launch_seconds, where
            ):
                yield executors

    @contextmanager
    def _open(self) -> Iterator[SparkSession]:
        try:
            channel = DefaultChannelBuilder(self._url, channelOptions=list(_CHANNEL))
        except (PySparkException, ValueError):
            # Not with the error, which may repeat the token.
            raise ConfigurationError(
                f"expected the URL of a Spark Connect server, such as sc://host:15002 or, with a token, "
                f"sc://host:15002/;token=…, found {self.address!r} and what follows it. In a token, write / as %2F, "
                f"= as %3D and ; as %3B."
            ) from None
        channel.add_interceptor(_OnlyData())
        session = SparkSession(channel)
        session.client.set_retry_policies([_RETRIES])
        self._session = session
        try:
            yield session
        finally:
            self._session = None
            session.client.set_retry_policies([])
            session.stop()  # ends what still runs for the session


class ConnectExecutors:
    """The Executors of a session on a Spark Connect server."""

    def __init__(self, session: SparkSession, pipeline: Pipeline, address: str) -> None:
        self._session, self._address, self._most = session, address, pipeline.tuning.max_connections
        self._variables: Mapping[str, str] = build_variables(pipeline)
        self._now = Progress()
        with self._errors("the session on the server failed"):
            # Without a transform, the settings that decide what SQL returns do not matter. The answer names the
            # server's life, which every later request repeats: after a restart, the server refuses them, so that no
            # job runs a second time.
            try:
                session.conf._set_all(dict(pipeline.spark_conf), silent=False)
            except (AnalysisException, IllegalArgumentException) as error:
                raise ConfigurationError(
                    f"pipeline {pipeline.name!r}: the Spark Connect server refuses its spark_conf: "
                    f"{_reason(error)}. Nothing was written. Correct spark_conf."
                ) from error
            if find_minor_version(version := session.version) != find_minor_version(pyspark.__version__):
                raise ConfigurationError(
                    f"the Spark Connect server at {address} is Spark {version}, and this client is PySpark "
                    f"{pyspark.__version__}. Nothing was written. Install Spark "
                    f"{find_minor_version(pyspark.__version__)} on the server, or pyspark "
                    f"{find_minor_version(version)} here."
                )
            if session.conf.get(ARTIFACT_ISOLATION) != "false":
                raise ConfigurationError(
                    f"the Spark Connect server at {address} has {ARTIFACT_ISOLATION} = true: each batch would "
                    f"leave a Python daemon on it. Nothing was written. Start the server with `exactbatch connect`."
                )
            self.parallelism, self.application_id = self._facts()
        session.registerProgressHandler(self._note)  # type: ignore[arg-type] # any callable

    def run(
        self,
        tasks: Sequence[Task],
        work: Callable[[Sequence[Task], int], Sequence[Outcome | ExactbatchError]],
        *,
        limit: int,
        verb: str,
    ) -> list[Outcome]:
        """Run the tasks on the server. Raises the errors of Executors.run()."""
        shares = [dumps((work, share)) for share in distribute(tasks, limit)]  # type: ignore[no-untyped-call]
        function = build_remote_task(shares, code_identity(), self._variables)
        accepted = self._accepted(function, len(shares), f"a task failed to {verb} its range")
        self._now = Progress((verb,))
        try:
            return loaded(list(chain.from_iterable(accepted)))
        except TasksFailed:  # they have ended
            raise
        except BaseException:
            self.cancel()
            raise
        finally:
            self._now = Progress()

    def _accepted(self, function: Any, number: int, failed: str) -> Iterator[list[bytes]]:
        """Run a function over that many partitions; yield outcomes, which the server sends when Spark has accepted
        them."""
        with self._errors(failed):
            client = self._session.client
            numbers: Any = self._session.range(0, number, 1, number)
            numbers._cached_schema = (
                _NUMBERS  # else the client would ask the server, and import what it answers
            )
            rows = numbers.mapInArrow(function, _OUTCOME)
            answers = client.to_table_as_iterator(rows._plan.to_proto(client), rows._plan.observations)
        while True:
            with self._errors(failed):
                answer = next(answers, None)
            if answer is None:
                return
            if isinstance(answer, pa.Table):
                yield answer.column(0).to_pylist()

    def transform(self, _: Connection, pipeline: Pipeline, __: Sequence[StageTask]) -> Stager:
        """Raise ConfigurationError: a transform needs a Spark driver."""
        check_pipeline(pipeline)
        raise AssertionError("a pipeline with a transform has passed")

    def progress(self) -> Progress:
        """Return what the server has last reported of the operation that runs."""
        return self._now

    def cancel(self) -> None:
        """End the operations of the session."""
        with suppress(PySparkException, grpc.RpcError):
            self._session.interruptAll()

    def _note(
        self, stages: Any = (), inflight_tasks: int = 0, operation_id: str | None = None, done: bool = False
    ) -> None:
        """Take a report on an operation, which the server sends every two seconds."""
        if done or not self._now.jobs:
            return
        finished = tuple((stage.stage_id, stage.num_completed_tasks, 0) for stage in stages or ())
        self._now = Progress((operation_id or self._now.jobs[0],), finished, inflight_tasks)

    def _facts(self) -> tuple[int, str | None]:
        """Return how many tasks the server says it runs at a time, otherwise as many as there may be, and the ID of its
        Spark application."""
        # With a default: a server refuses to return a property that nobody has set.
        parallelism, application_id = self._session.client.get_config_with_defaults(
            ("spark.default.parallelism", None), ("spark.app.id", None)
        )
        return int(parallelism) if parallelism else self._most, application_id

    @contextmanager
    def _errors(self, failed: str) -> Iterator[None]:
        """Raise TasksFailed, or ConfigurationError for a setting, instead of an error of the client; `failed` is
        what the message begins with if nothing more is known."""
        try:
            yield
        except ExactbatchError:
            raise
        except (PySparkException, grpc.RpcError) as error:
            raise self._error(failed, error) from error

    def _error(self, failed: str, error: Exception) -> ExactbatchError:
        code = _status(error)
        if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return ConfigurationError(
                f"the Spark Connect server at {self._address} refuses the token: {_reason(error)}. Nothing was "
                f"written. Set the token in the password of the Airflow connection, or in "
                f"SPARK_CONNECT_AUTHENTICATE_TOKEN."
            )
        if code == grpc.StatusCode.UNAVAILABLE:
            return TasksFailed(
                f"the Spark Connect server at {self._address} does not answer: {_reason(error)}. Is it running? "
                f"The retry checks the ledger, and processes the same ranges unless the batch was committed."
            )
        if isinstance(error, PySparkAssertionError) or _RESTARTED in str(error):
            return TasksFailed(
                f"the Spark Connect server at {self._address} was restarted while it ran the batch, or ended the "
                f"session. The retry checks the ledger, and processes the same ranges unless the batch was committed."
            )
        if _OTHER_PYTHON.search(str(error)):
            version = ".".join(map(str, sys.version_info[:2]))
            return ConfigurationError(
                f"the Spark Connect server at {self._address}: {_reason(error)}. Nothing was written. The server "
                f"and its executors need Python {version} with exactbatch, its dependencies and the pipeline's own "
                f"modules, like this client. Install them there, and restart the server."
            )
        if isinstance(error, PySparkException) and (refused := find_refused_setting(error, {})) is not None:
            return refused
        return TasksFailed(
            f"{failed}: {_reason(error)}. The next try reads the same ranges; the log of the server "
            f"has the traceback."
        )


class _OnlyData(grpc.UnaryStreamClientInterceptor):  # type: ignore[misc] # grpc has no types
    """Takes from the server's answers what no batch needs: Spark's client would unpickle the metrics of an accumulator,
    and import the module of a type, so that whoever answers could run code in this process."""

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        for answer in continuation(client_call_details, request):
            answer.ClearField("observed_metrics")
            answer.ClearField("schema")
            yield answer


def _status(error: Exception) -> Any:
    """Return the gRPC status of an error, if it has one."""
    if isinstance(error, grpc.RpcError):
        return error.code()
    status = getattr(error, "getGrpcStatusCode", None)
    return status() if status is not None else None


def _reason(error: Exception) -> str:
    """Return what an error says, in one line."""
    if isinstance(error, grpc.RpcError):
        return str(error.details())
    if details := re.search(r'details = "(.*)"', str(error)):
        return details[1]
    return cause(error) if isinstance(error, PySparkException) else str(error)
