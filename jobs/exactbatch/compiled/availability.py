"""Decide whether the fast path works in this process, and for which ranges it is worthwhile. Importing this does not
import numba."""

import logging
import os
from functools import cache
from typing import Final

from exactbatch.errors import ConfigurationError

logger = logging.getLogger(__name__)

# Offsets: from this size of a range on, the fast path saves more time than a new process takes to load it.
PAYS_FROM: Final = 150_000
# Another number of offsets, or "off" in upper or lower case.
VARIABLE: Final = "EXACTBATCH_FAST_PATH"
_OFF: Final = "off"
_loaded = False


def is_worth_compiling(offsets: int, *, reload: bool = False) -> bool:
    """True if the fast path pays for a range with this number of offsets. What the process has loaded already is free,
    unless another process has to `reload` it.

    Raises ConfigurationError if EXACTBATCH_FAST_PATH is neither a number nor `off`.
    """
    value = os.environ.get(VARIABLE, "").strip()
    if not value:
        return (_loaded and not reload) or offsets >= PAYS_FROM
    if value.lower() == _OFF:
        return False
    if not (value.isascii() and value.isdecimal()):
        raise ConfigurationError(
            f"{VARIABLE} is {value!r}, which is neither a number of offsets nor 'off'. Correct it in the environment "
            f"of the executors, or remove it."
        )
    return offsets >= int(value)


def is_available() -> bool:
    """True if the fast path works in this process; the first time that it does not, log why.

    The first call imports numba and loads the machine code, or compiles it.
    """
    return _log_once(unavailable())


@cache
def _log_once(reason: str | None) -> bool:
    if reason is not None:
        logger.warning("records are loaded without the fast path, which is slower: %s", reason)
    return reason is None


@cache
def unavailable() -> str | None:
    """Return why the fast path does not work in this process; None if it does."""
    try:
        prepare()
    except ImportError as error:
        return f"{error}. Install exactbatch[fast]"
    # Compilers fail in many ways, and none of them may fail a batch: there is another path.
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def prepare() -> str:
    """Load the machine code, compile it if there is none, and try it; return the directory that has it.

    Raises ImportError without numba, and anything that a compiler raises.
    """
    global _loaded
    # Both need numba, which the extra `fast` installs.
    from exactbatch.compiled.compiler import cache_directory
    from exactbatch.compiled.trial import check_machine_code

    check_machine_code()
    _loaded = True
    return str(cache_directory())
