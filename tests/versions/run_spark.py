"""Run tests with another version of Spark, and of Python, in an environment of their own.

    make test-spark SPARK=4.1.4
    make test-spark SPARK=4.2.0 ARGS="--python python3.13 tests/unit -n 2"

Without the names of tests, these are TESTS, which every supported version passes. An environment has the exact packages
of requirements.txt and requirements-dev.txt, but for PySpark. It stays in .local/venvs until `rm -r` removes it.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
VENVS: Final = ROOT / ".local" / "venvs"
UV: Final = Path(sys.executable).parent / "uv"
TESTS: Final = (
    "tests/integration/test_spark_versions.py",
    "tests/integration/test_refused_plan.py",
    "tests/integration/test_lineage.py",
    "tests/integration/test_connect.py::test_rows_rejects_and_replays_are_exact",
    "tests/faults/test_driver.py::test_driver_whose_jvm_is_killed_says_so_and_its_retry_is_exact",
    "tests/faults/test_lost_executors.py",
    "tests/unit/test_connect_engine.py",
    "tests/unit/test_connect_task.py",
    "tests/unit/test_python_daemon.py",
    "tests/unit/test_spark_settings.py",
)
# pyspark-client would write its files over those of PySpark; each PySpark names the Py4J that it needs.
_OTHERS: Final = ("py4j==", "pyspark==", "pyspark-client==")


def environment(spark: str, python: str = sys.executable) -> Path:
    """Return the Python of an environment with a version of PySpark, such as 4.1.4; build it if it is not there.

    `python` is the command of the Python that the environment is to have.
    """
    print_version = "import sys; print(*sys.version_info[:2], sep='.')"
    version = subprocess.check_output([python, "-c", print_version], text=True).strip()
    folder = VENVS / f"spark-{spark}-python-{version}"
    executable, built = folder / "bin" / "python", folder / "built"
    locked = _without_spark("requirements.txt", "requirements-dev.txt")
    if built.exists() and built.read_text() == locked:
        return executable
    _run(UV, "venv", "--quiet", "--clear", "--python", python, folder)
    install = (UV, "pip", "install", "--quiet", "--python", executable)
    (folder / "requirements.txt").write_text(locked)
    _run(*install, "--no-deps", "-r", folder / "requirements.txt")
    _run(*install, f"pyspark=={spark}")
    # A line in a .pth file runs the checkout, as an editable installation would.
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "checkout.pth").write_text(f"{ROOT / 'jobs'}\n")
    built.write_text(locked)
    return executable


def _without_spark(*files: str) -> str:
    """Return the requirements of locked files, without those of Spark; an indented line continues the one before."""
    kept: dict[str, str] = {}
    for file in files:
        name = ""
        for line in (ROOT / file).read_text().splitlines():
            if line.startswith("#"):
                continue
            if not line.startswith(" "):
                name = line.removesuffix("\\").strip()
                kept[name] = ""
            if not line.lstrip().startswith("#"):
                kept[name] += f"{line}\n"
    return "".join(text for name, text in kept.items() if not name.startswith(_OTHERS))


def _run(*command: object) -> None:
    subprocess.run(list(map(str, command)), check=True)


def main() -> int:
    """Run pytest with the given arguments; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("spark", help="a version of PySpark, such as 4.1.4")
    parser.add_argument("--python", default=sys.executable, help="a command, such as python3.13")
    parsed, arguments = parser.parse_known_args()
    python = environment(parsed.spark, parsed.python)
    path = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": ""}
    tests = arguments if any(each.startswith("tests/") for each in arguments) else [*arguments, *TESTS]
    return subprocess.run([python, "-m", "pytest", *tests], cwd=ROOT, env=os.environ | path).returncode


if __name__ == "__main__":
    sys.exit(main())
