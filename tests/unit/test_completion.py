"""The shell completes commands, options and pipelines, without importing a pipeline or asking a server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
eval "$(exactbatch --show-completion bash)"
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_exactbatch_completion exactbatch
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(folder: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    quoted = " ".join(f"'{word}'" for word in words)
    done = subprocess.run(
        ["bash", "-c", SCRIPT.format(words=quoted)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def pipelines(tmp_path):
    package = tmp_path / "pipelines"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("orders", "orders_eu", "flights", "_shared"):
        (package / f"{name}.py").write_text("raise SystemExit('imported')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["exactbatch", "sta"], ["status"]),
        (["exactbatch", "batches", "orders", "--sta"], ["--status"]),
        (["exactbatch", "batches", "orders", "--status", "pl"], ["planned"]),
        (["exactbatch", "status", "ord"], ["orders", "orders_eu"]),
        (["exactbatch", "batches", "fl"], ["flights"]),
        (["exactbatch", "lag", "orders", "fl"], ["flights"]),
        (["exactbatch", "doctor", ""], ["flights", "orders", "orders_eu"]),
    ],
    ids=lambda each: " ".join(each[1:]) if each[0] == "exactbatch" else "",
)
def test_bash_completes(pipelines, words, offered):
    assert completed(pipelines, *words) == offered
