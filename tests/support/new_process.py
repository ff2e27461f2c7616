"""Run Python code with the program and the tests' support in a new process."""

import os
import subprocess
import sys

from support.environment import TESTS


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a new process."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "jobs")])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
