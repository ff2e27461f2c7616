"""Which code of exactbatch a process runs: a long-lived server must run the same as its clients."""

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

import exactbatch


@cache
def code_identity() -> str:
    """Return the version, and a digest of the package's files; the same on every machine.

    The files are read once. A process that forks workers calls this when it imports the package, so that the result
    is that of the code which it has loaded.
    """
    package = Path(exactbatch.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*")):
        if file.suffix in (".py", ".sql"):
            digest.update(f"{file.relative_to(package)}\n".encode())
            digest.update(file.read_bytes())
    return f"{version('exactbatch')} ({digest.hexdigest()[:12]})"
