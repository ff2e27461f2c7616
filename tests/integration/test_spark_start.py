"""Spark that is set up in a way that cannot work: one terminal error that names the setting."""

import os
import subprocess
import sys

import pytest

from support.environment import HOME, JOBS, LONG, TESTS
from support.jvm import quick_spark

PROGRAM = """
import sys
from exactbatch import Append, Json, Pipeline
from exactbatch.batch.spark.executors import tasks_failed
from exactbatch.errors import ExactbatchError
from exactbatch.batch.spark.spark_session import batch_session, spark_session

conf = dict(word.split("=", 1) for word in sys.argv[1:])
pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("public.p"), spark_conf=conf)
try:
    with spark_session(pipeline, master="local[1]") as spark, batch_session(spark, pipeline) as session:
        try:
            numbers = session.range(0, 1000, 1, 1).mapInPandas(lambda frames: frames, "id long")
            print("OK", len(numbers.collect()), session.conf.get("spark.sql.caseSensitive"))
        except Exception as error:
            raise tasks_failed(session, error, "read")
except ExactbatchError as error:
    print("ERROR", type(error).__name__, error.retryable, error)
"""

# What a worker has when its task begins.
WORKER = """
import sys
from types import SimpleNamespace
from exactbatch import Append, Json, Pipeline
from exactbatch.batch.spark.python_daemon import load_compiled_code
from exactbatch.batch.spark.spark_session import batch_session, spark_session

def found(_):
    loaded = [name in sys.modules for name in ("exactbatch.batch.staging.stage", "exactbatch.compiled.json_kernel")]
    import pyspark
    return loaded, "pyspark.zip" in pyspark.__file__, any("/pyspark/" in path for path in sys.path)

conf = dict(word.split("=", 1) for word in sys.argv[1:])
pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("public.p"), spark_conf=conf)
with spark_session(pipeline, master="local[1]") as spark, batch_session(spark, pipeline) as session:
    for offsets in (1_000, 1_000_000):
        load_compiled_code(session.sparkContext, [SimpleNamespace(range=range(offsets))])
        print("OK", offsets, *session.sparkContext.parallelize([0], 1).map(found).collect())
"""
# What functions draw that do not seed their generator, each in a worker of its own.
RANDOM = """
from exactbatch import Append, Json, Pipeline
from exactbatch.batch.spark.spark_session import batch_session, spark_session

def draw(_):
    import random
    import numpy as np
    return random.random(), np.random.random()

conf = {
    "spark.ui.enabled": "false",
    "spark.python.worker.reuse": "false",
    "spark.python.daemon.module": "support.random_daemon",
}
pipeline = Pipeline(name="p", topics=("t",), value=Json("id int"), sink=Append("public.p"), spark_conf=conf)
with spark_session(pipeline, master="local[1]") as spark, batch_session(spark, pipeline) as session:
    drawn = session.sparkContext.parallelize(range(3), 3).map(draw).collect()
    print("OK", *(len(set(numbers)) for numbers in zip(*drawn)))
"""


def outcome(*conf: str, **environment: str) -> str:
    """What a driver with these properties and variables prints last."""
    return outcomes(PROGRAM, *conf, **environment)[-1]


def outcomes(program: str, *conf: str, **environment: str) -> list[str]:
    """What a driver prints that runs this program with these properties and variables."""
    variables = {
        **{name: os.environ[name] for name in set(os.environ) - {"PYSPARK_PYTHON", "SPARK_LOCAL_DIRS"}},
        "PYSPARK_SUBMIT_ARGS": f'--driver-java-options "{quick_spark(HOME)}" pyspark-shell',
        **environment,
    }
    arguments = [sys.executable, "-c", program, "spark.ui.enabled=false", *conf]
    done = subprocess.run(arguments, env=variables, capture_output=True, text=True, check=False, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("OK", "ERROR"))]
    assert lines, done.stderr
    return lines


BARE = "/python-without-packages"  # stands for a program that the test writes
REFUSED = {
    "spark.local.dir": (
        ["spark.local.dir=/dev/null/x"],
        {},
        "spark.local.dir is /dev/null/x, which is not writable",
    ),
    "driver memory": (
        ["spark.driver.memory=400m"],
        {"PYSPARK_SUBMIT_ARGS": "pyspark-shell"},
        "INVALID_DRIVER_MEMORY",
    ),
    "SPARK_LOCAL_DIRS": ([], {"SPARK_LOCAL_DIRS": "/dev/null/x"}, "SPARK_LOCAL_DIRS is /dev/null/x"),
    "plugins": (
        ["spark.plugins=com.example.Gone"],
        {},
        "Spark does not find the class com.example.Gone, which spark.plugins names",
    ),
    "no number": (["spark.task.cpus=x"], {}, "spark.task.cpus"),
    "master": (["spark.master=nowhere"], {}, "nowhere"),
    "python": (
        [],
        {"PYSPARK_PYTHON": "/nowhere/python"},
        "PYSPARK_PYTHON, /nowhere/python, must be a Python",
    ),
    "python without packages": (
        [],
        {"PYSPARK_PYTHON": BARE},
        f"PYSPARK_PYTHON, {BARE}, must be a Python",
    ),
    "python memory": (["spark.executor.pyspark.memory=100m"], {}, "spark.executor.pyspark.memory is 100m"),
    "maxResultSize": (["spark.driver.maxResultSize=1k"], {}, "Raise spark.driver.maxResultSize"),
}
IN_SHORT = ("spark.local.dir", "driver memory")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conf", "environment", "said"),
    [value for name, value in REFUSED.items() if LONG or name in IN_SHORT],
    ids=[name for name in REFUSED if LONG or name in IN_SHORT],
)
def test_a_setting_with_which_spark_cannot_work_is_named(conf, environment, said, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    found = outcome(*conf, **{name: value.replace(BARE, str(bare)) for name, value in environment.items()})
    assert found.startswith("ERROR ConfigurationError False "), found
    assert said.replace(BARE, str(bare)) in found


@pytest.mark.slow
def test_workers_of_local_driver_have_loaded_exactbatch_and_no_archive_is_read():
    assert outcomes(WORKER) == [
        "OK 1000 ([True, False], False, False)",
        "OK 1000000 ([True, True], False, False)",
    ]


def test_workers_of_one_daemon_draw_different_random_numbers():
    path = os.pathsep.join(map(str, (JOBS, TESTS)))
    assert outcomes(RANDOM, PYTHONPATH=path) == ["OK 3 3"]


@pytest.mark.long
def test_workers_of_sparks_own_daemon_load_it_themselves():
    assert outcomes(WORKER, "spark.python.daemon.module=pyspark.daemon") == [
        "OK 1000 ([False, False], True, True)",
        "OK 1000000 ([False, False], True, True)",
    ]


@pytest.mark.long
def test_defaults_of_site_that_batch_does_not_have_do_no_harm(tmp_path):
    (tmp_path / "spark-defaults.conf").write_text("spark.api.mode connect\nspark.sql.caseSensitive true\n")
    assert outcome(SPARK_CONF_DIR=str(tmp_path)) == "OK 1000 false"
