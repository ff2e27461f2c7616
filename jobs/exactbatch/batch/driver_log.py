"""The log of a driver that spark-submit runs: what exactbatch does, and without what other libraries do meanwhile."""

import logging
from pathlib import Path

from exactbatch.errors import ExactbatchError
from exactbatch.errors.exit_status import exit_status
from exactbatch.errors.explanation import hint

logger = logging.getLogger("exactbatch")


def set_up_log() -> None:
    """Log to the standard error."""
    # Other libraries log every closed connection at INFO (py4j with a traceback).
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        # py4j logs the traceback of a lost JVM as the root logger; the error says it in one line.
        handler.addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    logger.setLevel(logging.INFO)


def log_failure(error: ExactbatchError) -> int:
    """Log the error with which a driver ends, and the command that explains it; return the exit status."""
    logger.error("%s: %s", type(error).__name__, error)
    logger.info("%s", hint(error))
    return exit_status(error)
