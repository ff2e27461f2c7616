"""Compile the loops with numba, and keep the machine code for the next process."""

import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import llvmlite
import numba
import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

logger = logging.getLogger(__name__)

_config: Any = numba.config  # its attributes come from the environment
_HERE: Final = Path(__file__).parent
# Without numba's counting of references to arrays (`_nrt`), which takes ten times as long as the loops themselves.
# Python holds every array during the call, and compiled code creates none.
_OPTIONS: Final[dict[str, Any]] = {
    "nogil": True,
    "boundscheck": False,
    "error_model": "numpy",
    "_nrt": False,
}


def inlined(function: Function) -> Function:
    """Compile a function as a part of each compiled function that calls it."""
    compiled: Function = numba.njit(forceinline=True, **_OPTIONS)(function)
    return compiled


def called(function: Function) -> Function:
    """Compile a function that compiled functions call, for what is rare or long."""
    compiled: Function = numba.njit(**_OPTIONS)(function)
    return compiled


def entry(function: Function) -> Function:
    """Compile a function that Python calls, at its first call or, better, load it from the cache of machine code.

    Raises RuntimeError if no directory for the cache can be used: to compile in each process would take longer
    than the fast path saves.
    """
    with _cache_in(cache_directory()):
        compiled: Function = numba.njit(cache=True, **_OPTIONS)(function)
    return compiled


@contextmanager
def _cache_in(directory: Path) -> Iterator[None]:
    """Let numba keep what is decorated in the block in a directory; its own setting stays for other code."""
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(directory)
    try:
        yield
    finally:
        _config.CACHE_DIR = before


def cache_directory() -> Path:
    """Return a directory for the machine code of exactly these sources and versions, in which only this user can write.

    numba itself would take machine code for current as long as the file with the entry function is unchanged, even
    if a function that it calls, in another file, has changed. Raises RuntimeError if there is none.
    """
    name = f"exactbatch-{_fingerprint()}"
    own = _HERE / "__pycache__" / name
    candidates = [own]
    if _config.CACHE_DIR:
        candidates.insert(0, Path(_config.CACHE_DIR) / name)
    with suppress(RuntimeError):  # a user without a home directory
        candidates.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / name)
    for candidate in candidates:
        if _is_usable(candidate):
            if candidate != own and _is_of_package(own):
                _copy(own, candidate)  # compiled when an image was built, and read-only since
            return candidate
    raise RuntimeError(
        f"none of the directories {', '.join(map(str, candidates))} is writable, and by this user only"
    )


def _fingerprint() -> str:
    """Return a digest of all that decides the machine code.

    numba tells processors apart within a cache, but two of them that save at the same moment may take one file name.
    """
    digest = hashlib.sha256()
    for source in sorted(_HERE.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    versions = (numba.__version__, llvmlite.__version__, np.__version__, _config.BOUNDSCHECK)
    processor = llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten()
    digest.update(repr((versions, processor)).encode())
    return digest.hexdigest()[:16]


@cache
def _is_usable(directory: Path) -> bool:
    """True if this user can write in a directory, and nobody else: what it has runs as this user. Create it if it is
    missing; log, once, that others can write in it."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        # Other users copy the package's folder: an image is built by root.
        directory.mkdir(mode=0o755 if _HERE in directory.parents else 0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            found = directory.lstat()
    except OSError:
        return False
    if _is_owned(found, os.geteuid()):
        return True
    logger.warning(
        "%s is not used for machine code: others can write in it, since its owner is the user %s and its mode is %s. "
        "Remove it, or name a directory of this user's own in NUMBA_CACHE_DIR.",
        directory,
        found.st_uid,
        stat.filemode(found.st_mode),
    )
    return False


def _is_owned(found: os.stat_result, user: int) -> bool:
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == user
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _is_of_package(directory: Path) -> bool:
    """True if a directory exists that is as safe as the package's code: its owner alone can write in it."""
    return directory.is_dir() and _is_owned(directory.lstat(), _HERE.stat().st_uid)


def _copy(source: Path, target: Path) -> None:
    """Copy the files of a cache into an empty directory, each at once and the index that names the others last, so
    that another process sees no part of a file."""
    if any(target.iterdir()):
        return
    files = sorted(source.rglob("*.nb[ci]"), key=lambda file: file.suffix == ".nbi")
    with suppress(OSError):
        for file in files:
            copied = target / file.relative_to(source)
            copied.parent.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=copied.parent, delete=False) as part:
                part.write(file.read_bytes())
            shutil.move(part.name, copied)
