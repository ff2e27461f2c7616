"""The Java runtime of the broker, Ivy and Spark."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from exactbatch.local.stack_error import LocalStackError

MINIMUM = 17
INSTALL = "Install a Java runtime, for example with `apt-get install openjdk-17-jre-headless`, or set JAVA_HOME to one."


def find_java() -> Path:
    """Return the java executable of JAVA_HOME, or else of PATH.

    Raises LocalStackError if there is none, or if it is older than version 17.
    """
    java = _candidate()
    version = java_version(java)
    if version < MINIMUM:
        raise LocalStackError(f"expected Java {MINIMUM} or newer, found {version} at {java}. {INSTALL}")
    return java


def java_version(java: Path) -> int:
    """Return the major version that an executable prints, such as 17; `1.8.0` is version 8."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalStackError(f"the Java at {java} does not run ({error}). {INSTALL}") from error
    return parse_version(answer.stderr + answer.stdout, java)


def parse_version(text: str, java: Path) -> int:
    """Return the major version in the output of `java -version`."""
    version = re.search(r'version "(?:1\.)?(\d+)', text)
    if version is None:
        # On macOS, a /usr/bin/java without a Java runtime prints only a hint.
        output = " ".join(text.split())[:200]
        raise LocalStackError(f'{java} -version prints no version, but "{output}". {INSTALL}')
    return int(version.group(1))


def _candidate() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise LocalStackError(f"JAVA_HOME has no Java: {java} does not exist. {INSTALL}")
        return java
    on_path = shutil.which("java")
    if on_path is None:
        raise LocalStackError(f"expected Java {MINIMUM} or newer, found none on PATH. {INSTALL}")
    return Path(on_path)
