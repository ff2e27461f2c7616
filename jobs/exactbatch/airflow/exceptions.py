"""Errors of exactbatch as Airflow's exceptions."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from exactbatch.airflow.versions import AirflowException, AirflowFailException
from exactbatch.errors import ExactbatchError
from exactbatch.errors.explanation import hint
from exactbatch.errors.translation import translate_all_errors

logger = logging.getLogger(__name__)


@contextmanager
def airflow_errors() -> Iterator[None]:
    """End the task at once for a terminal error; leave any other error to Airflow's retries."""
    try:
        with translate_all_errors(but=(AirflowException,)):
            yield
    except ExactbatchError as error:
        # Logged on lines of their own: Airflow's own traceback would hide them.
        message = f"{type(error).__name__}: {error}"
        logger.error(message)
        if more := hint(error):
            logger.info(more)
        if error.retryable:
            raise
        raise AirflowFailException(message) from None
