"""The shell completes commands, options and pipelines, without importing a pipeline or asking a server."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

SCRIPT = """
eval "$(exactbatch --show-completion bash)"
while read -ra COMP_WORDS; do
  [ "${COMP_WORDS[-1]}" = - ] && COMP_WORDS[-1]=""
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _exactbatch_completion exactbatch
  echo "${COMPREPLY[*]}"
done
"""


def completed(folder: Path, lines: Iterable[str]) -> list[list[str]]:
    """What bash offers for the last word of each line; `-` is an empty word."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    done = subprocess.run(
        ["bash", "-c", SCRIPT],
        input="".join(f"{line}\n" for line in lines),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.fixture
def pipelines(tmp_path):
    package = tmp_path / "pipelines"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("orders", "orders_eu", "flights", "_shared"):
        (package / f"{name}.py").write_text("raise SystemExit('imported')\n")
    return tmp_path


def test_bash_completes(pipelines):
    offered = {
        "exactbatch sta": ["status"],
        "exactbatch batches orders --sta": ["--status"],
        "exactbatch batches orders --status pl": ["planned"],
        "exactbatch status ord": ["orders", "orders_eu"],
        "exactbatch batches fl": ["flights"],
        "exactbatch lag orders fl": ["flights"],
        "exactbatch doctor -": ["flights", "orders", "orders_eu"],
    }
    assert dict(zip(offered, completed(pipelines, offered), strict=True)) == offered
