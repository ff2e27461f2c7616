"""Where the workers of a driver are forked by a daemon that has loaded exactbatch, and what it has loaded."""

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest

from exactbatch.batch.engines.worker_daemon import leave_archives
from exactbatch.batch.spark.python_daemon import (
    LOADS_COMPILED_CODE,
    MODULE,
    PROPERTIES,
    PROPERTY,
    daemon_properties,
    load_compiled_code,
)
from exactbatch.compiled import availability


@pytest.fixture(autouse=True)
def own_python(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv(availability.VARIABLE, raising=False)


def test_the_module_exists():
    assert importlib.util.find_spec(MODULE) is not None


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[4, 3]"])
def test_a_local_master_has_the_daemon(master):
    assert daemon_properties({"spark.master": master, "spark.submit.pyFiles": ""}) == PROPERTIES


def test_a_setting_can_let_the_daemon_load_compiled_code_for_any_batch():
    variable = f"spark.executorEnv.{LOADS_COMPILED_CODE}"
    settings = {"spark.master": "local", variable: "1"}
    assert daemon_properties(settings) == {**PROPERTIES, variable: "1"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"spark.master": "spark://host:7077"},
        {"spark.master": "spark://host:7077,local"},
        {"spark.master": "yarn"},
        {"spark.master": "k8s://https://host:443"},
        {"spark.master": "local-cluster[1, 1, 1024]"},
        {"spark.master": "local[2]", "spark.submit.pyFiles": "/srv/exactbatch.zip"},
        {"spark.master": "local[2]", PROPERTY: "pyspark.daemon"},
    ],
)
def test_workers_that_may_have_other_packages_keep_the_daemon_of_spark(settings):
    assert daemon_properties(settings) == {}


def test_another_system_keeps_the_daemon_of_spark(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert daemon_properties({"spark.master": "local"}) == {}


def test_another_python_keeps_the_daemon_of_spark(monkeypatch, tmp_path):
    own = Path(sys.executable)
    monkeypatch.setenv("PATH", f"{own.parent}{os.pathsep}{os.environ['PATH']}")
    for command in (own.name, f"{own.parent}/python3"):
        monkeypatch.setenv("PYSPARK_PYTHON", command)
        assert daemon_properties({"spark.master": "local"}) == PROPERTIES
    (tmp_path / "python").symlink_to(own)  # as in another virtual environment of the same Python
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "script").chmod(0o755)
    for command in ("", f"{tmp_path}/python", f"{tmp_path}/script", f"{tmp_path}/nothing"):
        monkeypatch.setenv("PYSPARK_PYTHON", command)
        assert daemon_properties({"spark.master": "local"}) == {}
    (own_script := tmp_path / "bin").mkdir()
    (own_script / "python").symlink_to(own)
    (own_script / "wrapper").write_text("#!/bin/sh\n")
    (own_script / "wrapper").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(own_script / "python"))
    monkeypatch.setenv("PYSPARK_PYTHON", str(own_script / "wrapper"))
    assert daemon_properties({"spark.master": "local"}) == {}


def test_archives_of_the_installed_spark_leave_the_path_and_others_stay(monkeypatch, tmp_path):
    installed, other = tmp_path / "site-packages", tmp_path / "opt"
    archives = [
        installed / "pyspark/python/lib/pyspark.zip",
        installed / "pyspark/jars/spark-core.jar",
        other / "spark/python/lib/pyspark.zip",
    ]
    for archive in archives:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with ZipFile(archive, "w") as file:
            file.writestr(f"in_{archive.parent.name}.py", "")
    before = [str(each) for each in (*archives, tmp_path / "missing", installed)]
    monkeypatch.setattr(sys, "path", [*before, *sys.path])
    monkeypatch.setattr(sys, "path_importer_cache", dict(sys.path_importer_cache))
    assert importlib.util.find_spec("no_module_of_this_name") is None  # reads their directories
    assert before[0] in sys.path_importer_cache

    leave_archives()
    assert sys.path[:3] == before[2:]
    assert not {*before[:2]} & {*sys.path, *sys.path_importer_cache}
    assert before[2] in sys.path_importer_cache


def tasks(*offsets: int) -> list[Any]:
    return [SimpleNamespace(range=range(count)) for count in offsets]


def context(**environment: str) -> Any:
    return SimpleNamespace(defaultParallelism=2, environment={"TZ": "UTC", **environment})


def test_the_daemon_loads_compiled_code_for_ranges_that_it_pays_for(monkeypatch):
    monkeypatch.setattr(availability, "_loaded", True)  # in this process, which does not matter
    large = tasks(*[availability.PAYS_FROM // 2] * 4)
    small = tasks(*[availability.PAYS_FROM // 2] * 3)
    for work, value in ((large, "1"), (small, "0")):
        spark = context(**{LOADS_COMPILED_CODE: "0"})
        load_compiled_code(spark, work)
        assert spark.environment == {"TZ": "UTC", LOADS_COMPILED_CODE: value}
    monkeypatch.setenv(availability.VARIABLE, "off")
    spark = context(**{LOADS_COMPILED_CODE: "0"})
    load_compiled_code(spark, large)
    assert spark.environment[LOADS_COMPILED_CODE] == "0"


def test_no_variable_is_added_while_other_threads_read_the_environment():
    """PySpark reads it in a loop, which fails if the number of variables changes."""
    spark = context()
    load_compiled_code(spark, tasks(10**6))
    assert spark.environment == {"TZ": "UTC"}


def test_the_daemon_of_a_batch_stays_for_the_next_one():
    """Another environment would start another daemon."""
    spark = context(**{LOADS_COMPILED_CODE: "0"})
    load_compiled_code(spark, tasks(10**6))
    load_compiled_code(spark, tasks(1))
    assert spark.environment[LOADS_COMPILED_CODE] == "1"
