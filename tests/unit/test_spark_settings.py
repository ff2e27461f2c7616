"""What is said where a setting of Spark lets a batch fail, and which settings a batch has of its own."""

import re
import threading
import time
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer, UnixStreamServer
from types import SimpleNamespace
from typing import Any, cast

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException

from exactbatch.batch.spark.spark_errors import find_refused_setting, may_be_record_error
from exactbatch.batch.spark.spark_session import (
    _check_home,
    _environment,
    _not_started,
    _stop_accumulators_later,
    spark_session,
)
from exactbatch.batch.spark.spark_settings import PINNED, build_variables, choose_guarded_ports
from exactbatch.errors import ConfigurationError, TasksFailed
from support.pipelines import flights_pipeline

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_shows_what_is_pinned():
    rows = re.findall(r"^\| `(spark\.sql\.[^`]+)` \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(name, value) for name, (value, _) in PINNED.items()]


def test_home_not_there_or_of_another_version_is_refused(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    _check_home()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"^SPARK_HOME is .*, which contains no bin/spark-submit"):
        _check_home()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch()
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "spark-core_2.12-3.5.1.jar"
    jar.touch()
    with pytest.raises(
        ConfigurationError, match=r"which is Spark 3\.5\.1, and the Python package pyspark is 4\."
    ):
        _check_home()
    jar.rename(jar.with_name(f"spark-core_2.13-{pyspark.__version__}.jar"))
    _check_home()


@pytest.mark.parametrize("name", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_spark_connect_is_refused_by_variable_that_asks_for_it(monkeypatch, name):
    monkeypatch.setenv(name, "sc://localhost")
    with pytest.raises(ConfigurationError, match=f"^{name} is set"), spark_session(flights_pipeline()):
        pass


def test_spark_connect_in_the_pipelines_properties_is_refused():
    pipeline = flights_pipeline(spark_conf={"spark.remote": "sc://localhost"})
    with pytest.raises(ConfigurationError, match=r"spark_conf has spark\.remote"), spark_session(pipeline):
        pass


@pytest.mark.parametrize(
    ("changes", "is_transformed"), [({}, False), ({"transform": "select * from records"}, True)]
)
def test_a_jvm_that_starts_is_fitted_to_its_work(monkeypatch, changes, is_transformed):
    asked: list[Any] = []

    def refuse(_: Any, **named: Any) -> None:
        asked.append(named)
        raise InterruptedError

    monkeypatch.setattr("exactbatch.batch.spark.spark_session.with_archive", refuse)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    with pytest.raises(InterruptedError), spark_session(flights_pipeline(**changes), offsets=7):
        pass
    assert asked == [{"is_transformed": is_transformed, "offsets": 7}]


def test_a_context_stops_while_its_accumulators_end(monkeypatch):
    ends, ended = threading.Event(), threading.Event()

    def shutdown(server: Any) -> None:
        assert ends.wait(30)
        server.server_close()
        ended.set()

    monkeypatch.setattr(TCPServer, "shutdown", shutdown)
    server = TCPServer(("localhost", 0), StreamRequestHandler)
    _stop_accumulators_later(cast(SparkContext, SimpleNamespace(_accumulatorServer=server)))
    server.shutdown()
    assert not ended.is_set()
    ends.set()
    assert ended.wait(30)


def test_a_context_waits_until_the_socket_file_of_its_accumulators_is_removed(tmp_path):
    server = UnixStreamServer(str(tmp_path / "socket"), StreamRequestHandler)
    shutdown = server.shutdown
    _stop_accumulators_later(cast(SparkContext, SimpleNamespace(_accumulatorServer=server)))
    assert server.shutdown == shutdown
    server.server_close()


# What Spark says, whether a retry may help, and what is said of it.
SAID = [
    (
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11",
        ConfigurationError,
        "PYSPARK_PYTHON, /opt/python, is another version of Python than the driver's",
    ),
    (
        "  File x\nModuleNotFoundError: No module named 'psycopg2'",
        ConfigurationError,
        "No module named 'psycopg2'. Nothing was written. PYSPARK_PYTHON, /opt/python, must be a Python",
    ),
    (
        'java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory',
        ConfigurationError,
        "PYSPARK_PYTHON, /opt/python, must be a Python that exists",
    ),
    (
        "Total size of serialized results of 2 tasks is bigger than spark.driver.maxResultSize 1024.0 B.",
        ConfigurationError,
        "Raise spark.driver.maxResultSize",
    ),
    (
        "PythonWorkerException: Python worker process terminated due to idle timeout (timeout: 60 seconds)",
        ConfigurationError,
        "Raise spark.sql.execution.pyspark.udf.idleTimeoutSeconds",
    ),
    (
        "SystemError: error return without exception set",
        ConfigurationError,
        "spark.executor.pyspark.memory is 300m",
    ),
]


@pytest.mark.parametrize(("said", "kind", "expected"), SAID)
def test_a_job_that_fails_because_of_a_setting_names_it(monkeypatch, said, kind, expected):
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    error = find_refused_setting(PySparkException(said), {"spark.executor.pyspark.memory": "300m"})
    assert type(error) is kind
    assert expected in str(error)


def test_what_names_no_setting_is_told_by_others():
    assert (
        find_refused_setting(PySparkException("SystemError: error return without exception set"), {}) is None
    )
    assert find_refused_setting(PySparkException("ZeroDivisionError: division by zero"), {}) is None


@pytest.mark.parametrize(
    ("said", "kind", "expected"),
    [
        (
            ": java.lang.ClassNotFoundException: com.example.Gone\n\tat java.base",
            ConfigurationError,
            "Spark does not find the class com.example.Gone, which spark.plugins names",
        ),
        (
            ": java.lang.IllegalArgumentException: spark.executor.cores should be int, but was x",
            ConfigurationError,
            "Correct spark.executor.cores",
        ),
        (": java.net.BindException: Address already in use", TasksFailed, "Address already in use"),
    ],
)
def test_start_that_fails_is_terminal_where_setting_is_at_fault(said, kind, expected):
    settings = {"spark.plugins": "com.example.Gone", "spark.executor.cores": "x"}
    error = _not_started(PySparkException(said), settings)
    assert type(error) is kind
    assert expected in str(error)


@pytest.mark.parametrize(
    ("said", "may_be"),
    [
        ("Traceback\n  File x\nZeroDivisionError: division by zero", True),
        ("[CAST_INVALID_INPUT] The value 'n' of the type \"STRING\" cannot be cast", True),
        # What a record holds.
        ("[CAST_INVALID_INPUT] The value 'Job 1 cancelled' of the type \"STRING\" cannot be cast", True),
        ("Traceback\n  File x\nKeyError: 'crashed'", True),
        ("Traceback\n  File x\nValueError: the order was cancelled", True),
        (
            "Traceback\n  File x\nexactbatch.errors.PostgresUnavailable: the connection to Postgres was lost",
            False,
        ),
        ("Traceback\n  File x\nexactbatch.errors.ReadFailed: t[0] 0..5: expected to read it", False),
        ("Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)", False),
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", False),
        ("java.io.IOException: No space left on device", False),
        ("Job 3 cancelled part of cancelled job group", False),
    ],
)
def test_a_record_is_looked_for_only_where_one_may_be_the_cause(said, may_be):
    assert may_be_record_error(PySparkException(said)) == may_be


@pytest.mark.parametrize("zone", ["Mars/Olympus", "PST", ""])
def test_a_zone_that_python_does_not_know_is_refused(zone):
    pipeline = flights_pipeline(spark_conf={"spark.sql.session.timeZone": zone})
    with pytest.raises(ConfigurationError, match="which is not in the time zone database of this machine"):
        build_variables(pipeline)


@pytest.mark.parametrize(
    ("zone", "local"),
    [("America/Port-au-Prince", "America/Port-au-Prince"), ("+02:00", "UTC"), ("UTC", "UTC")],
)
def test_python_functions_see_the_zone_of_the_session(zone, local):
    pipeline = flights_pipeline(spark_conf={"spark.sql.session.timeZone": zone})
    assert build_variables(pipeline) == {"TZ": local, "PYTHONHASHSEED": "0"}


def test_batches_at_the_same_time_have_one_zone(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    spark = cast(Any, SimpleNamespace(sparkContext=SimpleNamespace(environment={})))
    utc, tokyo = {"TZ": "UTC"}, {"TZ": "Asia/Tokyo"}
    with _environment(spark, utc), _environment(spark, utc):
        with (
            pytest.raises(ConfigurationError, match="this process runs another batch"),
            _environment(spark, tokyo),
        ):
            pass
        assert spark.sparkContext.environment == utc
    with _environment(spark, tokyo):
        assert spark.sparkContext.environment == tokyo
        assert time.tzname[0] == "JST"
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"spark.master": "local[*]"}, {"spark.driver.host", "spark.ui.enabled", "spark.authenticate"}),
        ({"spark.master": "local"}, {"spark.driver.host", "spark.ui.enabled", "spark.authenticate"}),
        (
            {"spark.master": "local[2, 3]", "spark.driver.host": "me"},
            {"spark.ui.enabled", "spark.authenticate"},
        ),
        ({"spark.master": "yarn"}, {"spark.authenticate"}),
        ({"spark.master": "yarn", "spark.shuffle.service.enabled": "true"}, set()),
        ({"spark.master": "k8s://https://host:6443"}, {"spark.authenticate"}),
        ({"spark.master": "k8s://host", "spark.authenticate": "false"}, set()),
        ({"spark.master": "spark://host:7077"}, set()),
        ({"spark.master": "local-cluster[1,1,1024]"}, set()),
        ({}, set()),
    ],
)
def test_ports_are_guarded_where_spark_itself_can_do_so(given, expected):
    """The processes of a standalone cluster and of a shuffle service must have been given a secret before."""
    assert set(choose_guarded_ports(given)) == expected
