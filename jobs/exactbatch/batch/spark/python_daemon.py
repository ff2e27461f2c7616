"""Which Python daemon forks the workers of a driver: by default one that has loaded exactbatch, where it can."""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from exactbatch.compiled.availability import pays

if TYPE_CHECKING:
    from pyspark import SparkContext

    from exactbatch.batch.staging.shares import HasRange

MODULE: Final = "exactbatch.batch.engines.worker_daemon"
PROPERTY: Final = "spark.python.daemon.module"
# In its environment: the daemon also loads compiled code.
WITH_COMPILED_CODE: Final = "EXACTBATCH_DAEMON_LOADS_COMPILED_CODE"
_LOCAL: Final = re.compile(r"local(\[[^]]*\])?")


def daemon_property(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark property that names the daemon. It is empty if `settings`, all those of the driver, name one,
    or if workers may have another Python or other packages than the driver: on a cluster, with --py-files and with
    another PYSPARK_PYTHON.
    """
    # Other systems have libraries that do not work in a fork of a process which has loaded them.
    can_fork = sys.platform == "linux"
    is_local = _LOCAL.fullmatch(settings.get("spark.master", "")) is not None
    has_other_code = bool(settings.get("spark.submit.pyFiles"))
    is_own = (
        can_fork and is_local and not has_other_code and _is_own_python(os.environ.get("PYSPARK_PYTHON", ""))
    )
    return {PROPERTY: MODULE} if is_own and PROPERTY not in settings else {}


def _is_own_python(command: str) -> bool:
    """True if a command starts this Python with these packages: a virtual environment is known by its folder."""
    found, own = shutil.which(command), Path(sys.executable)
    return found is not None and Path(found).parent == own.parent and own.samefile(found)


def load_compiled_code(context: "SparkContext", tasks: "Sequence[HasRange]") -> None:
    """Let the daemon load compiled code before it forks, if that pays for these tasks: once instead of in each worker.

    Raises ConfigurationError if EXACTBATCH_FAST_PATH is neither a number nor `off`.
    """
    slot_offsets = sum(len(task.range) for task in tasks) // context.defaultParallelism
    # Spark starts another daemon for another environment, so what is set stays.
    if context.getConf().get(PROPERTY) == MODULE and pays(slot_offsets, anew=True):
        context.environment[WITH_COMPILED_CODE] = "1"
