"""All errors: one family, whose members travel between processes."""

import pickle

import pytest

from exactbatch import errors
from exactbatch.errors import ExactbatchError, RetryableError
from exactbatch.errors.exit_status import exit_status

ALL = sorted(
    (each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, ExactbatchError)),
    key=lambda each: each.__name__,
)
RETRYABLE = {
    "RetryableError",
    "KafkaUnavailable",
    "LogEndedEarly",
    "PostgresUnavailable",
    "ReadFailed",
    "RegistryUnavailable",
    "StagedRowsDiffer",
    "StoredOffsetsMoved",
    "TasksFailed",
    "UnexpectedError",
}


@pytest.mark.parametrize("error", ALL)
def test_an_error_survives_the_way_from_an_executor_to_the_driver(error: type[ExactbatchError]) -> None:
    there_and_back = pickle.loads(pickle.dumps(error("t[0] 3..7: expected …")))
    assert type(there_and_back) is error
    assert str(there_and_back) == "t[0] 3..7: expected …"


@pytest.mark.parametrize("error", ALL)
def test_an_error_tells_whether_trying_again_can_help(error: type[ExactbatchError]) -> None:
    assert error.retryable == (error.__name__ in RETRYABLE) == issubclass(error, RetryableError)
    assert exit_status(error("…")) == (1 if error.retryable else 42)


@pytest.mark.parametrize("error", ALL)
def test_an_error_says_what_it_means(error: type[ExactbatchError]) -> None:
    assert error.__doc__
    assert error.__doc__.endswith(".")
