"""Start a command of exactbatch for a pipeline, as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from exactbatch import Pipeline
from exactbatch.settings import Settings
from support.environment import JOBS


def start_command(
    settings: Settings, folder: Path, name: str, pipeline: Pipeline, *arguments: str, failpoints: str = ""
) -> subprocess.Popen[str]:
    """Start `exactbatch NAME` for a pipeline, which a module in the folder then has."""
    module = f"pipeline_of_{name}"
    (folder / f"{module}.py").write_text(
        f"import datetime\nfrom exactbatch import *\npipeline = {pipeline!r}\n"
    )
    return subprocess.Popen(
        [sys.executable, "-m", "exactbatch.cli", name, f"{module}:pipeline", *arguments],
        env={
            **os.environ,
            **settings.as_environment(),
            "PYTHONPATH": os.pathsep.join(map(str, (folder, JOBS))),
            "EXACTBATCH_FAILPOINTS": failpoints,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
