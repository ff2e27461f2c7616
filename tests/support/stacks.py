"""Stacks of a test run, with their data in memory where there is room for it.

Each test has a database, which is 300 files. A tenth of the CPU time of a run went into creating and deleting them on a
disk with ext4.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import psutil

from exactbatch.local import LocalStack
from support.environment import HOME

_MEMORY: Final = Path("/dev/shm")  # Linux has it
_ROOM: Final = 8 * 1024**3  # bytes; the stacks of a whole run need 3 GiB at most


def new_stack(purpose: str) -> LocalStack:
    """Return a stack for this process. down(delete=True) also deletes its data in memory."""
    name = f"{purpose}-{os.getpid()}"
    if _has_room() and not (HOME / name).exists():
        HOME.mkdir(parents=True, exist_ok=True)
        (HOME / name).unlink(missing_ok=True)  # its data may have gone with a restart of the machine
        folder = tempfile.mkdtemp(prefix=f"exactbatch-{name}-", dir=_MEMORY)
        (HOME / name).symlink_to(folder)
    return LocalStack(HOME, name=name)


def _has_room() -> bool:
    """True if memory has room for the data of the servers and for all else that runs."""
    return (
        _MEMORY.is_dir()
        and os.access(_MEMORY, os.W_OK)
        and shutil.disk_usage(_MEMORY).free > _ROOM
        and psutil.virtual_memory().available > _ROOM
    )
