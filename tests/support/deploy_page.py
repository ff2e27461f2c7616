"""What docs/deploy.md tells a site to do, for tests that do it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from support.environment import DOCS, ROOT

_PAGE: Final = (DOCS / "deploy.md").read_text()


def block(section: str, language: str, number: int = 0) -> str:
    """Return a block of a section of the page."""
    text = _PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return found[number]


def make_archive() -> Path:
    """Make the archive of executors with the page's commands; that takes a minute."""
    shown = block("Spark standalone", "console").splitlines()
    commands = [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    script = "set -euo pipefail\n" + "\n".join(commands)
    subprocess.run(["bash", "-c", script], cwd=ROOT, env={**os.environ, "PATH": path}, check=True)
    return ROOT / "build/deploy/executors.tar.gz"


def zip_pipelines(folder: Path, package: Path) -> Path:
    """Make the zip file of a package, or a module, with pipelines as the page's command does."""
    pipelines = folder / "pipelines.zip"
    subprocess.run([sys.executable, "-m", "zipfile", "-c", str(pipelines), str(package)], check=True)
    return pipelines


def with_real_paths(properties: str, real: dict[str, object]) -> str:
    """Return properties of the page with real paths in place of those that it shows."""
    for shown, path in real.items():
        assert shown in properties
        properties = properties.replace(shown, str(path))
    return properties
