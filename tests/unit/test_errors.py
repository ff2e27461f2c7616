"""All errors: one family, whose members travel between processes."""

import inspect
import pickle
from uuid import uuid4

import pytest
from pyspark import cloudpickle

from exactbatch import errors
from exactbatch.errors import ExactbatchError, RetryableError
from exactbatch.errors.exit_status import exit_status
from exactbatch.offsets import OffsetRange

ALL = sorted(
    (each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, ExactbatchError)),
    key=lambda each: each.__name__,
)
RETRYABLE = {
    "RetryableError",
    "AirflowUnavailable",
    "KafkaUnavailable",
    "LogEndedEarly",
    "PostgresUnavailable",
    "ReadFailed",
    "RegistryUnavailable",
    "TokenUnavailable",
    "StagedRowsDiffer",
    "StoredOffsetsMoved",
    "TablesUnfinished",
    "TasksFailed",
    "UnexpectedError",
}


FIELDS = {
    "topic": "t",
    "partition": 0,
    "from_offset": 3,
    "until_offset": 7,
    "batch_id": 17,
    "column": "carrier",
    "constraint": "flight_pkey",
    "sqlstate": "23505",
}


@pytest.mark.parametrize("error", ALL)
@pytest.mark.parametrize("module", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_pickling_keeps_the_message_and_the_fields(error, module):
    original = error("t[0] 3..7: …", **FIELDS)
    copied = pickle.loads(module.dumps(original))
    assert type(copied) is error
    assert str(copied) == "t[0] 3..7: …"
    assert vars(copied) == vars(original) == FIELDS
    assert copied.retryable == original.retryable


@pytest.mark.parametrize("error", ALL)
def test_fields_that_are_not_given_are_none_after_pickling(error):
    copied = pickle.loads(pickle.dumps(error("…")))
    assert vars(copied) == dict.fromkeys(FIELDS)


def test_an_error_takes_its_place_from_a_range():
    error = errors.OffsetsLost("…", **OffsetRange("t", 0, 3, 7, uuid4()).place)
    assert (error.topic, error.partition, error.from_offset, error.until_offset) == ("t", 0, 3, 7)


@pytest.mark.parametrize("error", ALL)
def test_an_error_tells_whether_trying_again_can_help(error):
    assert error.retryable == (error.__name__ in RETRYABLE) == issubclass(error, RetryableError)
    assert exit_status(error("…")) == (1 if error.retryable else 2 if error is errors.WrongUsage else 42)


@pytest.mark.parametrize("error", ALL)
def test_an_error_says_what_it_means(error):
    assert (inspect.getdoc(error) or "").endswith(".")
