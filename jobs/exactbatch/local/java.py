"""The Java runtime of the broker, Ivy and Spark, and jars from Maven, downloaded once with the Ivy that PySpark
contains.

Ivy checks only what the same server says about a jar. So `<name>.sha256`, next to a definition, has what each jar of it
must be, in the format of sha256sum.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from exactbatch.local.server import Progress, silent
from exactbatch.local.stack_error import LocalStackError

MINIMUM = 17
INSTALL = "Install a Java runtime, for example with `apt-get install openjdk-17-jre-headless`, or set JAVA_HOME to one."
# A jar that another process is writing into Ivy's cache, or one answer of a server that failed, fails an attempt. The
# next one downloads only what is missing.
_ATTEMPTS = 3


def find_java() -> Path:
    """Return the java executable of JAVA_HOME, or else of PATH.

    Raises LocalStackError if there is none, or if it is older than version 17.
    """
    java = _candidate()
    version = read_java_version(java)
    if version < MINIMUM:
        raise LocalStackError(f"expected Java {MINIMUM} or newer, found {version} at {java}. {INSTALL}")
    return java


def read_java_version(java: Path) -> int:
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


DEFINITIONS = Path(__file__).parent / "ivy"


def fetch_jars(
    name: str, jars: Path, progress: Progress = silent, *, definitions: Path = DEFINITIONS
) -> Path:
    """Return the folder `jars/<name>` with all jars of `definitions/<name>.xml`. Download them if they are missing.

    Raises LocalStackError if Java is missing, if a jar cannot be downloaded, and if the jars are not those of
    `definitions/<name>.sha256`.
    """
    folder = jars / name
    if is_complete(name, jars, definitions):
        return folder
    jars.mkdir(parents=True, exist_ok=True)
    # A folder with its final name is complete: an interrupted download leaves none.
    fetched = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=jars))
    try:
        _retrieve(definitions / f"{name}.xml", fetched, progress)
        check_jars(fetched, definitions / f"{name}.sha256")
        shutil.copy(definitions / f"{name}.xml", fetched / "ivy.xml")
        fetched.chmod(0o755)
        _put_in_place(fetched, folder)
    finally:
        shutil.rmtree(fetched, ignore_errors=True)
    return folder


def is_complete(name: str, jars: Path, definitions: Path = DEFINITIONS) -> bool:
    """Return True if `jars/<name>` has the jars of the current definition."""
    fetched = jars / name / "ivy.xml"
    return fetched.is_file() and fetched.read_text() == (definitions / f"{name}.xml").read_text()


def check_jars(folder: Path, checksums: Path) -> None:
    """Raise LocalStackError unless a folder has exactly the jars that a file of sha256sum lists."""
    lines = (line.split("  ", 1) for line in checksums.read_text().splitlines())
    expected = {name: digest for digest, name in lines}
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.glob("*.jar")}
    wrong = sorted(name for name in expected | found if expected.get(name) != found.get(name))
    if wrong:
        raise LocalStackError(
            f"{wrong[0]}: expected the SHA-256 {expected.get(wrong[0], 'of no jar')}, found "
            f"{found.get(wrong[0], 'no such jar')}; {len(wrong)} of {len(expected)} jars differ. Check the network "
            f"or the mirror, remove {ivy_cache()}, and download them again."
        )


def _retrieve(definition: Path, into: Path, progress: Progress) -> None:
    command: list[str | Path] = [
        *(find_java(), "-jar", bundled_ivy(), "-ivy", definition, "-cache", ivy_cache()),
        *("-retrieve", f"{into}/[artifact]-[revision].[ext]", "-types", "jar", "bundle"),
    ]
    settings = os.environ.get("EXACTBATCH_IVY_SETTINGS")
    if settings:
        command += ["-settings", settings]
    jars = 0
    for attempts_left in reversed(range(_ATTEMPTS)):
        output: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
            for line in ivy.stdout or ():
                output.append(line.strip())
                if "[SUCCESSFUL ]" in line and ".jar" in line:
                    jars += 1
                    if jars % 10 == 0:
                        progress(f"downloading the jars of {definition.stem}: {jars} so far")
        if ivy.returncode == 0:
            return
        if not attempts_left:
            raise LocalStackError(_failure(definition.stem, output))
        progress(f"downloading the jars of {definition.stem} again")


def _failure(name: str, output: list[str]) -> str:
    reasons = [line for line in output if "Server access error" in line] or [
        line for line in output if re.search("not found|FAILED|error|exception", line, re.IGNORECASE)
    ]
    reason = reasons[0] if reasons else " ".join(output[-3:])
    return (
        f"could not download the jars of {name} from Maven Central: {reason}. Check the network. For a mirror, set "
        "EXACTBATCH_IVY_SETTINGS to an Ivy settings file; for a proxy, set "
        "JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=… -Dhttps.proxyPort=…'."
    )


def _put_in_place(fetched: Path, folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    try:
        fetched.rename(folder)
    except OSError:
        # Another process has downloaded the same jars first.
        if not (folder / "ivy.xml").is_file():
            raise


def bundled_ivy() -> Path:
    """Return the Ivy jar in the package pyspark."""
    spec = importlib.util.find_spec("pyspark")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise LocalStackError(
        "the package pyspark, which contains Ivy, is not installed. Install it with `pip install 'exactbatch[local]'`."
    )


def ivy_cache() -> Path:
    """Return the folder of Ivy's downloads, below the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "exactbatch", "ivy")
