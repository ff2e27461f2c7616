"""`make matrix`: run what each supported version promises, and write the table of docs/requirements.md.

Without arguments, the oldest and the newest version of each axis run; `--all` runs each, and `Kafka=2.8.2` that one.
Everything else is as this project pins it. The results of other versions stay in the table.
"""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(_ROOT / "tests"))

from support.kafka_versions import RELEASES as KAFKA  # noqa: E402 - a program of this folder has the others on its path
from support.postgres_versions import OWN as OWN_POSTGRES  # noqa: E402
from support.postgres_versions import RELEASES as POSTGRES  # noqa: E402

_PAGE: Final = _ROOT / "docs" / "requirements.md"
_RESULTS: Final = _ROOT / "docs" / "evidence" / "versions.json"
_LOGS: Final = _ROOT / ".local" / "matrix"
_BEGIN: Final = "<!-- make matrix writes from here … -->\n"
_END: Final = "<!-- … to here -->\n"
_OLDEST_POSTGRES: Final = 14
_EVERY_SINK: Final = "tests/integration/test_every_sink.py"
_KILLED: Final = tuple(
    f"tests/faults/test_matrix.py::test_the_try_after_a_fault_is_exact[{combination}]"
    for combination in (
        "append: SIGKILL at publish.before_commit",
        "upsert: SIGKILL at publish.after_retract, replay",
        "aggregate: SIGKILL at publish.after_commit",
        "partition: SIGKILL at job.after_ranges",
        "transform: SIGKILL at stage.after_copy_commit",
        "by_batch: SIGKILL at publish.after_insert, replay",
    )
)


@dataclass(frozen=True)
class Version:
    """A version of an axis, and the command that runs its tests, before pytest's own arguments."""

    axis: str
    number: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.axis}={self.number}"


@dataclass(frozen=True)
class Result:
    """What became of the tests of a version: how many passed, and the names of those that did not."""

    date: str
    passed: int
    failed: Sequence[str]


def versions() -> Iterator[Version]:
    """Yield the versions of each axis, the oldest first."""
    python = sys.executable
    for number in ("3.0.6", "3.1.8", "3.2.2"):
        yield Version("Airflow", number, [python, "tests/versions/run_airflow.py", number])
    for number in ("4.0.5", "4.1.4", "4.2.1", "4.3.0"):
        yield Version("Spark", number, [python, "tests/versions/run_spark.py", number])
    for number in ("3.12", "3.13"):
        of_python = ["4.2.0", "--python", f"python{number}"]
        yield Version("Python", number, [python, "tests/versions/run_spark.py", *of_python])
    for major in (*POSTGRES, OWN_POSTGRES):
        if major >= _OLDEST_POSTGRES:
            tests = [_EVERY_SINK, *_KILLED]
            of_server = {} if major == OWN_POSTGRES else {"EXACTBATCH_TEST_POSTGRES": str(major)}
            yield Version("Postgres", str(major), [python, "-m", "pytest", *tests], of_server)
    for number in KAFKA:
        others = [f"not {each}" for each in KAFKA if each.startswith(f"{number}-")]
        tests = ["tests/integration/test_kafka_versions.py", "-k", " and ".join([number, *others])]
        yield Version("Kafka", number, [python, "-m", "pytest", *tests])


def run(version: Version) -> Result:
    """Run the tests of a version, whose output is in .local/matrix. Raises SystemExit if none ran."""
    _LOGS.mkdir(parents=True, exist_ok=True)
    report, log = _LOGS / f"{version}.xml", _LOGS / f"{version}.log"
    report.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(_ROOT / "tests"), **version.environment}
    with log.open("wb") as out:
        command = [*version.command, "-q", f"--junitxml={report}"]
        status = subprocess.run(command, cwd=_ROOT, env=environment, stdout=out, stderr=out, check=False)
    if not report.exists():
        raise SystemExit(f"error: {version}: no test ran, exit status {status.returncode}. See {log}")
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failed = [
        str(case.get("name"))
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    passed = len(cases) - len(failed) - sum(case.find("skipped") is not None for case in cases)
    if not passed or (status.returncode and not failed):
        raise SystemExit(
            f"error: {version}: {passed} tests passed, exit status {status.returncode}. See {log}"
        )
    return Result(datetime.now(UTC).date().isoformat(), passed, failed)


def write(version: Version, result: Result) -> None:
    """Write a result beside those that are there, and the table of all into the page."""
    results: dict[str, Result] = {}
    if _RESULTS.exists():
        results = {name: Result(**each) for name, each in json.loads(_RESULTS.read_text()).items()}
    results[str(version)] = result
    _RESULTS.write_text(json.dumps({name: asdict(each) for name, each in results.items()}, indent=1) + "\n")
    lines = ["", "| version | tests | date |", "| --- | --- | --- |"]
    for each in versions():
        if (found := results.get(str(each))) is not None:
            failed = f", **{len(found.failed)} failed**" if found.failed else ""
            lines.append(f"| {each.axis} {each.number} | {found.passed} passed{failed} | {found.date} |")
    head, _, rest = _PAGE.read_text().partition(_BEGIN)
    tail = rest.partition(_END)[2]
    _PAGE.write_text(head + _BEGIN + "\n".join(lines) + "\n\n" + _END + tail)


def chosen(arguments: Sequence[str]) -> list[Version]:
    """Return the versions that the arguments name. Raises SystemExit for an unknown one."""
    known = {str(each): each for each in versions()}
    if list(arguments) == ["--all"]:
        return list(known.values())
    if unknown := [each for each in arguments if each not in known]:
        raise SystemExit(f"error: expected --all or versions among {', '.join(known)}, found {unknown[0]}")
    if arguments:
        return [known[each] for each in arguments]
    of_axes: dict[str, list[Version]] = {}
    for each in known.values():
        of_axes.setdefault(each.axis, []).append(each)
    return [each for of_axis in of_axes.values() for each in (of_axis[0], of_axis[-1])]


def main(*arguments: str) -> int:
    """Run versions one after the other; return 1 if a test of one failed."""
    failed = False
    for version in chosen(arguments):
        print(f"· {version}", flush=True)  # noqa: T201 - progress
        result = run(version)
        write(version, result)
        failed = failed or bool(result.failed)
        failures = "".join(f", {name} failed" for name in result.failed)
        print(f"  {result.passed} passed{failures}", flush=True)  # noqa: T201 - progress
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
