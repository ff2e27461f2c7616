"""Checks of this machine: Java, Python, packages, versions, the fast path, and the class archive."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from exactbatch.batch.spark.class_archive import archive_file, archive_folder, find_java
from exactbatch.batch.spark.pyspark_packages import check_pyspark
from exactbatch.batch.tested_versions import REMEDY, TESTED, installed, untested
from exactbatch.compiled.availability import VARIABLE
from exactbatch.operations.doctor.finding import Finding

OLDEST_JAVA: Final = 17
_INSTALL: Final = (
    "Install Java 17 or newer, as `apt-get install openjdk-17-jre-headless` does, or let JAVA_HOME name it."
)
_JAVA_TIMEOUT: Final = 10.0  # seconds
FAST_PATH_TIMEOUT: Final = 90.0  # seconds; the first time, machine code is compiled
_FAST_PATH: Final = "from exactbatch.compiled.availability import unavailable; print(unavailable() or '')"


def check_java() -> Iterator[Finding]:
    """Look for the Java that spark-submit starts, and its version."""
    java = find_java()
    if java is None:
        where = f"in JAVA_HOME, {os.environ['JAVA_HOME']}" if os.environ.get("JAVA_HOME") else "on PATH"
        yield Finding("java", "problem", f"there is no Java {where}", _INSTALL)
        return
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("java", "problem", f"the Java at {java} does not run: {error}", _INSTALL)
        return
    printed = answer.stderr + answer.stdout
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    if found is None:
        said = " ".join(printed.split())[:200]
        yield Finding("java", "problem", f"{java} -version prints no version, but {said!r}", _INSTALL)
    elif int(found[1]) < OLDEST_JAVA:
        yield Finding("java", "problem", f"expected Java 17 or newer, found {found[1]} at {java}", _INSTALL)
    else:
        yield Finding("java", "ok", f"Java {found[1]} at {java}")


def check_packages() -> Iterator[Finding]:
    """Compare Python and the installed packages with the ranges that exactbatch requires."""
    try:
        required, python = requires("exactbatch") or [], metadata("exactbatch")["Requires-Python"]
    except PackageNotFoundError:
        yield Finding(
            "packages",
            "warning",
            "exactbatch is not installed as a package, so the ranges that it requires are not known",
            "Install it with pip, as `make venv` does.",
        )
        return
    running = ".".join(map(str, sys.version_info[:3]))
    if not SpecifierSet(python).contains(running):
        yield Finding(
            "packages",
            "problem",
            f"expected Python {python}, found {running}",
            "Install a Python in this range, and exactbatch in it.",
        )
    wrong = list(_out_of_range(map(Requirement, required)))
    yield from wrong
    if not wrong:
        yield Finding("packages", "ok", f"Python {running}, and all packages are in their ranges")


def check_spark() -> Iterator[Finding]:
    """Compare the version of PySpark with the supported versions, and with the versions of its files and jars."""
    yield Finding("spark", "ok", check_pyspark())


def check_versions() -> Iterator[Finding]:
    """Compare the versions of Python, Airflow and Spark with those that exactbatch was tested with."""
    found = installed()
    newer = [said for name, each in found.items() if (said := untested(name, each)) is not None]
    for said in newer:
        yield Finding("tested versions", "warning", said, REMEDY)
    if not newer:
        here = ", ".join(map(" ".join, found.items()))
        tested = ", ".join(f"{name} {oldest} to {newest}" for name, (oldest, newest) in TESTED.items())
        yield Finding("tested versions", "ok", f"{here}. exactbatch was tested with {tested}")


def check_fast_path() -> Iterator[Finding]:
    """Try the compiled fast path, in another process, because compiling may take long."""
    if os.environ.get(VARIABLE, "").strip().lower() == "off":
        yield Finding(
            "fast path",
            "warning",
            f"{VARIABLE} is off",
            f"To make large batches faster, unset {VARIABLE}.",
        )
        return
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _FAST_PATH], capture_output=True, text=True, timeout=FAST_PATH_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        reason = f"compiling took more than {FAST_PATH_TIMEOUT:.0f} s"
    else:
        reason = answer.stdout.strip() if answer.returncode == 0 else answer.stderr.strip().splitlines()[-1]
    if reason:
        yield Finding(
            "fast path",
            "warning",
            f"large batches are slower, because the fast path is not available: {reason}",
            "Install exactbatch[fast], and run `python -m exactbatch.compiled`.",
        )
    else:
        yield Finding("fast path", "ok", "available")


def check_archive() -> Iterator[Finding]:
    """Look for the class archive of this Java and this Spark."""
    archive = archive_file(archive_folder())
    if archive is not None and os.access(archive, os.R_OK):
        yield Finding("class archive", "ok", str(archive))
    else:
        yield Finding(
            "class archive",
            "warning",
            "drivers start slowly: there is no class archive of this Java and this Spark",
            "Run `exactbatch archive` once.",
        )


def _out_of_range(required: Iterator[Requirement]) -> Iterator[Finding]:
    for requirement in required:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name == "pyspark":  # its range says what pip may choose: check_spark() knows what runs
            continue
        remedy = f"Run pip install '{requirement.name}{requirement.specifier}'."
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            yield Finding("packages", "problem", f"{requirement.name} is not installed", remedy)
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield Finding(
                "packages",
                "problem",
                f"expected {requirement.name} {requirement.specifier}, found {installed}",
                remedy,
            )
