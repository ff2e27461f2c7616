"""What each accelerator buys: exactbatch beside copies of itself, in each of which one accelerator is off.

Each copy is a folder in which a few texts are replaced. All ways run on the same topic, in turns, at the default
settings of `exactbatch local`, autovacuum included. Writes build/ablation.json and docs/evidence/ablation.md.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import usage
from bench import HOME, ROOT, check
from rich.console import Console
from runner import Measured, Runner, Servers, benchmark_servers, progress_on
from shapes import SHAPES, Shape
from topics import PARTITIONS, ensure_topic
from ways import (
    CORES,
    EXACTBATCH,
    EXACTBATCH_BY_BATCH,
    Place,
    Way,
    one_transaction,
    register,
)

from exactbatch.batch.spark.class_archive import archive_folder, build_archive
from exactbatch.local.demo.flights import COUNT
from exactbatch.settings import Settings

JOBS: Final = ROOT / "jobs"
REPORT: Final = ROOT / "build" / "ablation.json"
PAGE: Final = ROOT / "docs" / "evidence" / "ablation.md"
LEAST: Final = 0.15  # of wall time or CPU: an accelerator that saves less on each of its shapes is deleted
ROWS: Final = 6 * COUNT
BUSY: Final = (
    "The reads of small ranges and of audits were measured beside other work, so that they took longer than on a quiet",
    "machine, with and without the accelerator.",
)
DELETED: Final = (
    "An `Append` inserted the rows of finished tasks while others still staged. That saved 2% to 5% of wall time, and",
    "cost 6% to 11% of CPU, for flights, flights with a transform, and events. It was deleted.",
    "",
    "An audit compared records of JSON with the text of their rows before it decoded them. That cost 4% of wall time",
    "and of CPU for flights. It was deleted.",
)
FEW: Final = 1_000  # records of a batch whose time is that of starting


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """An accelerator, and how to switch it off in a copy of jobs/.

    edits    a file below jobs/exactbatch, a text that occurs in it once, and what replaces it
    code     the files, or folders, that exist for it alone
    ways     the ways that it claims to help, on each of the `shapes`
    audits   the audits that it claims to help: with "values", or of "offsets" alone
    topic    the records of a topic of each shape, and its partitions; None: the ordinary ones
    Without ways and audits, it only speeds up the start of a process.
    """

    name: str
    title: str
    edits: Sequence[tuple[str, str, str]]
    code: Sequence[str]
    ways: Sequence[Way] = ()
    audits: Sequence[str] = ()
    shapes: Sequence[str] = ()
    topic: tuple[int, int] | None = None

    def copy_without(self, folder: Path) -> Path:
        """Make a copy of jobs/ without it, and return its path. Raises SystemExit if a text is not there once."""
        copy = folder / self.name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(JOBS, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for name, old, new in self.edits:
            file = copy / "exactbatch" / name
            text = file.read_text()
            if text.count(old) != 1:
                raise SystemExit(f"{name} has {text.count(old)} times: {old}")
            file.write_text(text.replace(old, new))
        return copy

    def count_lines(self) -> int:
        """Return the lines of its own code."""
        files = [
            file
            for each in self.code
            for file in (
                [JOBS / "exactbatch" / each]
                if each.endswith(".py")
                else (JOBS / "exactbatch" / each).rglob("*.py")
            )
        ]
        return sum(len(file.read_text().splitlines()) for file in files)


ACCELERATORS: Final = (
    Accelerator(
        name="native_reader",
        title="records without objects",
        edits=[("kafka/range_consumer.py", "    if can_be_native and", "    if False and")],
        code=[
            *("kafka/native_client.py", "kafka/native_records.py", "kafka/native_library.py"),
            *("kafka/native_records.py", "kafka/range_consumer.py", "compiled/messages.py"),
        ],
        ways=[EXACTBATCH_BY_BATCH],
        shapes=["flights", "events", "zstd"],
    ),
    Accelerator(
        name="kernel",
        title="compiled JSON and COPY",
        edits=[
            (
                "batch/rows/row_encoder.py",
                "    return is_worth_compiling(",
                "    return False and is_worth_compiling(",
            )
        ],
        code=[
            "compiled",
            *(f"batch/rows/{name}.py" for name in ("json_loop", "row_encoder")),
        ],
        ways=[EXACTBATCH, EXACTBATCH_BY_BATCH],
        shapes=["flights", "nested"],
    ),
    Accelerator(
        name="shared_reads",
        title="one consumer for small ranges",
        edits=[
            (
                "batch/rows/decode.py",
                "    if len(tasks) == 1:\n        return None",
                "    if True:\n        return None",
            )
        ],
        code=["kafka/reader.py"],
        ways=[EXACTBATCH],
        shapes=["flights"],
        topic=(100_000, 200),
    ),
    Accelerator(
        name="small_logs",
        title="audit: one consumer for small slices",
        edits=[("audit/log_windows.py", "        if slice_ not in self._held and", "        if False and")],
        code=["audit/log_windows.py"],
        audits=["offsets"],
        shapes=["flights"],
        topic=(100_000, 200),
    ),
    Accelerator(
        name="class_archive",
        title="archive of Spark's classes",
        edits=[("batch/spark/class_archive.py", 'f"{archive_options(archive)} {compilers}', 'f"{compilers}')],
        code=["batch/spark/class_archive.py", "cli/archive.py"],
    ),
    Accelerator(
        name="java_compilers",
        title="options of Java's compilers",
        edits=[("batch/spark/class_archive.py", "(archive)} {compilers} {given}", "(archive)} {given}")],
        code=[],
    ),
    Accelerator(
        name="worker_daemon",
        title="daemon that has imported exactbatch",
        edits=[("batch/spark/python_daemon.py", "    if not is_own or", "    if True or")],
        code=["batch/engines/worker_daemon.py", "batch/spark/python_daemon.py"],
    ),
)


def main() -> None:
    """Measure, write build/ablation.json, and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = [each.name for each in ACCELERATORS]
    parser.add_argument("--rows", type=int, default=ROWS, help=f"records in the topic of flights ({ROWS:,})")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each way (3)")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, help="measure only these accelerators"
    )
    arguments = parser.parse_args()
    chosen = [each for each in ACCELERATORS if each.name in arguments.only]
    report: dict[str, Any] = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    with progress_on(Console()) as progress, benchmark_servers(HOME, progress, {}) as servers:
        folder = servers.scratch / "without"
        for each in chosen:
            copy = each.copy_without(folder)
            found = measure(each, copy, servers, arguments.rows, arguments.rounds, progress)
            report[each.name] = {"rows": arguments.rows, "rounds": arguments.rounds, "cases": found}
            REPORT.parent.mkdir(exist_ok=True)
            REPORT.write_text(json.dumps(report, indent=1) + "\n")
            write_page(report)


def measure(
    accelerator: Accelerator,
    copy: Path,
    servers: Servers,
    rows: int,
    rounds: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Return, for each case, what the accelerator saves: shares of wall time and of CPU, with the numbers of both."""
    found = {}
    for shape in (SHAPES[name] for name in accelerator.shapes):
        records, partitions = accelerator.topic or (round(rows * shape.share), PARTITIONS)
        place = _place(servers, shape, records, progress, partitions)
        what = f"{shape.name}, {partitions} partitions" if accelerator.topic else shape.name
        if accelerator.audits:
            _load(place, servers)
        for audit in accelerator.audits:
            progress(f"{accelerator.title}: {shape.name}, audit of {audit}")
            found[f"{what}, audit of {audit}"] = _saved(*_audited(audit, place, copy, servers, rounds))
        for way in accelerator.ways:
            if shape.name in way.shapes:
                progress(f"{accelerator.title}: {shape.name}, {way.title}")
                found[f"{what}, {way.title}"] = _saved(*_in_turns(way, place, copy, servers, rounds))
    if not accelerator.shapes:
        place = _place(servers, SHAPES["flights"], FEW, progress)
        progress(f"{accelerator.title}: a batch of {FEW:,} records in a new process")
        found[f"{FEW:,} records, exactbatch run"] = _saved(*_started(place, copy, servers, rounds))
    return found


def _place(
    servers: Servers,
    shape: Shape,
    rows: int,
    progress: Callable[[str], None],
    partitions: int = PARTITIONS,
) -> Place:
    topic = f"{shape.name}_{rows}" + (f"_{partitions}" if partitions != PARTITIONS else "")
    ensure_topic(servers.stack.kafka_properties, topic, rows, progress, shape, partitions)
    return servers.place(topic, rows, shape)


Times = Sequence[tuple[float, float]]  # seconds, and CPU seconds, of each round


def _in_turns(way: Way, place: Place, copy: Path, servers: Servers, rounds: int) -> tuple[Times, Times]:
    """Run a way with the accelerator, and without it, in turns; all processes are warm."""
    with ExitStack() as stack:
        runners = [stack.enter_context(Runner(way, place, jobs)) for jobs in (None, copy)]
        took: list[list[Measured]] = [[], []]
        for _ in range(rounds + 1):
            for runner, times in zip(runners, took, strict=True):
                servers.prepare(place, way)
                times.append(runner.run(servers))
                check(servers, place, way)
    on, off = ([(each.seconds, each.cpu_with_servers) for each in times[1:]] for times in took)
    return on, off


def _load(place: Place, servers: Servers) -> None:
    with Runner(EXACTBATCH, place) as runner:
        servers.prepare(place, EXACTBATCH)
        runner.run(servers)
        check(servers, place, EXACTBATCH)


def _audited(what: str, place: Place, copy: Path, servers: Servers, rounds: int) -> tuple[Times, Times]:
    """Audit a loaded target in new processes, in turns, each time after an audit that warms up."""
    command = [
        sys.executable,
        str(ROOT / "tests" / "benchmarks" / "one_audit.py"),
        place.topic,
        place.shape.name,
        what,
    ]
    settings = Settings(kafka=place.kafka, postgres=place.postgres).as_environment()
    took: list[list[tuple[float, float]]] = [[], []]
    for _ in range(rounds):
        for jobs, times in zip((JOBS, copy), took, strict=True):
            before = servers.cpu_seconds()
            run = subprocess.run(
                command,
                env={**os.environ, **settings, "PYTHONPATH": _path(jobs)},
                stdout=subprocess.PIPE,
                check=True,
            )
            seconds, cpu, records = json.loads(run.stdout)
            if records != place.rows:
                raise SystemExit(f"expected an exact audit, found {records}")
            times.append((seconds, cpu + (servers.cpu_seconds() - before) / 2))
    return took[0], took[1]


def _started(place: Place, copy: Path, servers: Servers, rounds: int) -> tuple[Times, Times]:
    """Run `exactbatch run` over a few records in new processes, in turns: seconds until they end, and their CPU."""
    build_archive(archive_folder())
    register(place, one_transaction(place))
    module = place.scratch / "ablation_pipeline.py"
    module.write_text(
        "from dataclasses import replace\nfrom exactbatch import Append\nfrom pipelines.flights import flights\n"
        f"small = replace(flights, name={place.topic!r}, topics=({place.topic!r},), "
        f"sink=Append({EXACTBATCH.target!r}))\n"
    )
    command = [
        sys.executable,
        "-m",
        "exactbatch.cli",
        "run",
        "ablation_pipeline:small",
        "--master",
        f"local[{CORES}]",
    ]
    took: list[list[tuple[float, float]]] = [[], []]
    for _ in range(rounds + 1):
        for jobs, times in zip((JOBS, copy), took, strict=True):
            servers.prepare(place, EXACTBATCH)
            settings = Settings(kafka=place.kafka, postgres=place.postgres).as_environment()
            path = os.pathsep.join([_path(jobs), str(place.scratch)])
            started = time.perf_counter()
            process = subprocess.Popen(
                command,
                env={**os.environ, **settings, "PYTHONPATH": path},
                cwd=place.scratch,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            with usage.watch(process.pid) as used:
                status = process.wait()
            if status:
                raise SystemExit(f"exactbatch run ended with exit status {status}")
            times.append((time.perf_counter() - started, used.cpu))
            check(servers, place, EXACTBATCH)
    return took[0][1:], took[1][1:]


def _path(jobs: Path) -> str:
    return os.pathsep.join([str(jobs), str(ROOT / "tests" / "benchmarks"), str(ROOT / "tests")])


def _saved(on: Times, off: Times) -> dict[str, Any]:
    """Return the share of wall time and of CPU that is saved, of the medians; less than 0 is lost."""
    (wall_on, cpu_on), (wall_off, cpu_off) = (
        [round(statistics.median(each), 2) for each in zip(*times, strict=True)] for times in (on, off)
    )
    return {
        "seconds": [wall_on, wall_off],
        "cpu": [cpu_on, cpu_off],
        "saves_wall": round(1 - wall_on / wall_off, 2),
        "saves_cpu": round(1 - cpu_on / cpu_off, 2),
    }


def write_page(report: Mapping[str, Any]) -> None:
    """Write what is known of each accelerator."""
    lines = [
        "# What each accelerator buys",
        "",
        "`tests/benchmarks/ablation.py` runs exactbatch beside a copy of itself in which one accelerator is off, in",
        "turns, on the same topic, with the default settings of Postgres. What saves less than "
        f"{LEAST:.0%} of wall time",
        "and of CPU on each shape that it is for has to go. CPU is of all processes, for loads with Kafka and",
        "Postgres. All values are medians. A number below 0 is a loss.",
        "",
        "| accelerator | lines of its own | case | seconds, on and off | CPU seconds | saves of wall time | of CPU |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for each in ACCELERATORS:
        for case, saved in report.get(each.name, {}).get("cases", {}).items():
            wall, cpu = (" and ".join(f"{number:.2f}" for number in saved[key]) for key in ("seconds", "cpu"))
            shares = f"{saved['saves_wall']:.0%} | {saved['saves_cpu']:.0%}"
            lines.append(f"| {each.title} | {each.count_lines():,} | {case} | {wall} | {cpu} | {shares} |")
    lines += ["", *BUSY, "", *DELETED]
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
