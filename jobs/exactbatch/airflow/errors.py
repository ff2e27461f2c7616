"""Errors of exactbatch as Airflow takes them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from exactbatch.errors import ExactbatchError
from exactbatch.errors.translation import all_errors_own

log = logging.getLogger(__name__)


@contextmanager
def errors_of_airflow() -> Iterator[None]:
    """A terminal error ends the task at once; any other goes on to Airflow's retries."""
    try:
        with all_errors_own(but=(AirflowException,)):
            yield
    except ExactbatchError as error:
        if error.retryable:
            raise
        # Once by itself, where it can be read: the trace below it is Airflow's own.
        said = f"{type(error).__name__}: {error}"
        log.error(said)
        raise AirflowFailException(said) from None
