"""The Java that runs the broker, Ivy and Spark."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from exactbatch.local.errors import LocalStackError

MINIMUM = 17
INSTALL = (
    "install a Java runtime, for example `apt-get install openjdk-17-jre-headless`, or set JAVA_HOME to one"
)


def find_java() -> Path:
    """The java executable of JAVA_HOME, else of PATH, checked to be version 17 or newer.

    Raises LocalStackError when there is none, or an older one only.
    """
    java = _candidate()
    version = java_version(java)
    if version < MINIMUM:
        raise LocalStackError(f"expected Java {MINIMUM} or newer, found {version} at {java}: {INSTALL}")
    return java


def java_version(java: Path) -> int:
    """The major version that an executable reports, e.g. 17; 8 for the old form `1.8.0`."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalStackError(f"expected Java at {java}, it does not run ({error}): {INSTALL}") from error
    return parse_version(answer.stderr + answer.stdout, java)


def parse_version(text: str, java: Path) -> int:
    """The major version in what `java -version` printed."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    if found is None:
        # macOS has a /usr/bin/java that only says that no Java is installed.
        said = " ".join(text.split())[:200]
        raise LocalStackError(f'expected a version from {java} -version, found "{said}": {INSTALL}')
    return int(found.group(1))


def _candidate() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise LocalStackError(f"expected Java at JAVA_HOME, found no {java}: {INSTALL}")
        return java
    found = shutil.which("java")
    if found is None:
        raise LocalStackError(f"expected Java {MINIMUM} or newer, found none on PATH: {INSTALL}")
    return Path(found)
