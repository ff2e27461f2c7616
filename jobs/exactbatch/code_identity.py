"""Identify the code of exactbatch that a process runs: whatever decodes records must run the same as what planned their
batch."""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.resources.abc import Traversable

from exactbatch.errors import ConfigurationError


@cache
def code_identity() -> str:
    """Return the version, and a digest of the package's files; the same on every machine.

    The files are read once. A process that forks workers calls this when it imports the package, so that the result
    describes the code that it has loaded.
    """
    digest = hashlib.sha256()
    for name, file in sorted(_code_files(files("exactbatch"), "")):
        digest.update(f"{name}\n".encode())
        digest.update(file.read_bytes())
    return f"{package_version()} ({digest.hexdigest()[:12]})"


def other_code(driver: str) -> ConfigurationError | None:
    """Return the error for an executor whose code differs from that of its driver, a code_identity(); None if it does
    not."""
    if code_identity() == driver:
        return None
    return ConfigurationError(
        f"the executors run exactbatch {code_identity()}, and the driver {driver}: they could decode records in "
        f"another way. Nothing was written. Install the same version on both: `exactbatch explain upgrade` says in "
        f"which order."
    )


def package_version() -> str:
    """Return the version; a package that is on the path without being installed has none."""
    try:
        return version("exactbatch")
    except PackageNotFoundError:
        return "without a version"


def _code_files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    """Yield the files of code below a folder, which may be in an archive, with their paths."""
    for entry in folder.iterdir():
        if prefix == "" and entry.name == "docs":  # a wheel has some of its files
            continue
        if entry.is_dir():
            yield from _code_files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith((".py", ".sql")):
            yield f"{prefix}{entry.name}", entry
