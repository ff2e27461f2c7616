"""Choose the Python daemon that forks the workers of a driver: by default one that has loaded exactbatch, where it
can."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from exactbatch.batch.spark.spark_settings import is_local
from exactbatch.compiled.availability import is_worth_compiling

if TYPE_CHECKING:
    from pyspark import SparkContext

    from exactbatch.batch.staging.shares import HasRange

PROPERTY: Final = "spark.python.daemon.module"
MODULE: Final = "exactbatch.batch.engines.worker_daemon"
# In the daemon's environment, "1" if it is also to load compiled code.
LOADS_COMPILED_CODE: Final = "EXACTBATCH_DAEMON_LOADS_COMPILED_CODE"
PROPERTIES: Final[Mapping[str, str]] = {PROPERTY: MODULE, f"spark.executorEnv.{LOADS_COMPILED_CODE}": "0"}


def daemon_properties(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Return PROPERTIES, with the value of the variable that `settings` has; `settings` are all settings of the driver.

    Return nothing if they name a daemon, or if workers may have another Python or other packages than the driver: on a
    cluster, with --py-files and with another PYSPARK_PYTHON.
    """
    # Other systems have libraries that do not work in a fork of a process which has loaded them.
    can_fork = sys.platform == "linux"
    has_other_code = bool(settings.get("spark.submit.pyFiles"))
    is_own = (
        can_fork
        and is_local(settings)
        and not has_other_code
        and _is_own_python(os.environ.get("PYSPARK_PYTHON", ""))
    )
    if not is_own or PROPERTY in settings:
        return {}
    return {name: settings.get(name, value) for name, value in PROPERTIES.items()}


def _is_own_python(command: str) -> bool:
    """True if a command starts this Python with these packages: a virtual environment is known by its folder."""
    found, own = shutil.which(command), Path(sys.executable)
    return found is not None and Path(found).parent == own.parent and own.samefile(found)


def load_compiled_code(context: "SparkContext", tasks: "Sequence[HasRange]") -> None:
    """Let the daemon load compiled code before it forks, if that pays for these tasks: once instead of in each worker.

    Raises ConfigurationError if EXACTBATCH_FAST_PATH is neither a number nor `off`.
    """
    slot_offsets = sum(len(task.range) for task in tasks) // context.defaultParallelism
    # Another thread may be reading the environment: a variable may change, and none may be added. What is set stays,
    # because Spark starts another daemon for another environment.
    if LOADS_COMPILED_CODE in context.environment and is_worth_compiling(slot_offsets, reload=True):
        context.environment[LOADS_COMPILED_CODE] = "1"
