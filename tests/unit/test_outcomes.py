"""What tasks return is data: it arrives as it was sent, and nothing else is taken for it."""

import pickle
from uuid import UUID

import pytest

from exactbatch import errors
from exactbatch.batch.by_partition.partition_commit import Committed
from exactbatch.batch.staging.outcomes import dump, load
from exactbatch.batch.staging.task import Staged
from exactbatch.batch.transform.one_pass import Passed
from exactbatch.errors import ConfigurationError, ExactbatchError, RefusedRecord, TargetMismatch
from exactbatch.offsets import OffsetRange

RANGE = OffsetRange('t"ü', 3, 5, 2**60, UUID(int=7), 4)
STAGED = Staged(RANGE, 2**40, 10, 9, 1, 0, dropped=2, replaced=3, fast_count=4)


@pytest.mark.parametrize(
    "outcome",
    [STAGED, Committed(5, 3), Passed(1, (STAGED, STAGED), 7, None), Passed(1, (), 0, 5)],
)
def test_outcomes_arrive_as_they_were_sent(outcome):
    assert load(dump(outcome)) == [outcome]
    [arrived] = load(dump([outcome]))
    assert arrived == outcome
    assert repr(arrived) == repr(outcome)


@pytest.mark.parametrize(
    "class_",
    [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, ExactbatchError)],
)
def test_each_error_arrives_with_what_it_names(class_):
    error = class_("t[0]: bad", topic="t", partition=0, column="c", batch_id=9, sqlstate="22003")
    [arrived] = load(dump([error]))
    assert type(arrived) is class_
    assert (str(arrived), vars(arrived)) == (str(error), vars(error))


def test_an_error_has_the_records_that_the_target_refuses():
    error = TargetMismatch("refused")
    error.refused = [RefusedRecord("t", 0, 5, "why"), RefusedRecord("t", 1, 6, "why not")]
    [arrived] = load(dump(error))
    assert arrived.refused == error.refused
    assert isinstance(arrived.refused[0], RefusedRecord)


def test_an_error_of_a_pipeline_s_own_arrives_as_the_one_that_it_derives_from():
    class Own(ConfigurationError):
        pass

    [arrived] = load(dump(Own("mine")))
    assert (type(arrived), str(arrived)) == (ConfigurationError, "mine")


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(STAGED),
        b"",
        b"[]]",
        b'[["os.system", {}]]',
        b'[["error", {"kind": "SystemExit", "message": "x"}]]',
        dump(STAGED).replace(b'"attempt":', b'"attempts":'),
        dump(STAGED).replace(b'"rows":9', b'"rows":"9"'),
        dump(STAGED).replace(b'"from_offset":5', b'"from_offset":-5'),
    ],
)
def test_anything_else_is_refused_and_shown(data):
    with pytest.raises(
        ConfigurationError, match="which is not a task outcome that this version of exactbatch knows"
    ):
        load(data)
