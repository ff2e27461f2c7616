"""A soak fails where its drivers did nothing, or nothing but fail."""

from itertools import chain

from soak.history import QUIET_S, Committed, Event, Failed, Fault, Started, troubles


def working(slot: int, began: float, ended: float, every: float = 2.0) -> list[Event]:
    """A driver that commits a batch every `every` seconds."""
    count = int((ended - began) / every)
    return [Committed(began + every * number, slot) for number in range(count)]


def faults(began: float, ended: float, every: float = 10.0, lasts: float = 1.0) -> list[Event]:
    """A fault every ten seconds."""
    count = int((ended - began) / every)
    return [Fault(began + every * n, began + every * n + lasts, "session") for n in range(count)]


def found(*events: list[Event], ended: float = 300.0) -> list[str]:
    return troubles([*chain(*events)], slots=2, began=0.0, ended=ended)


def test_drivers_that_work_under_faults_are_no_trouble():
    failed: list[Event] = [Failed(at, 0, "PostgresUnavailable") for at in range(5, 300, 10)]
    assert found(working(0, 0, 300), working(1, 0, 300), faults(0, 300), failed) == []


def test_a_driver_that_lost_its_jvm_and_went_on_failing_is_found():
    """As a soak of 5 minutes was, whose end was exact: 2,592 errors, and 5 batches in 90 seconds."""
    failed: list[Event] = [
        Failed(181 + number * 91 / 2592, number % 2, "TasksFailed") for number in range(2592)
    ]
    few = working(1, 181, 272, every=91 / 5)
    went_on = [*working(0, 0, 181), *working(1, 0, 181), *working(0, 272, 300), *working(1, 272, 300)]
    said = found(went_on, few, faults(0, 300), failed)
    assert said[0].startswith("the driver of slot 0 committed nothing from 178 s to 272 s, ")
    assert said[1] == "TasksFailed came 2592 times: 30 faults explain 250 at most"
    assert len(said) == 2


def test_a_driver_that_never_commits_is_found():
    assert found(working(0, 0, 300)) == [
        "the driver of slot 1 committed nothing from 0 s to 300 s, 300 s of it outside of any fault"
    ]


def test_the_time_of_a_fault_and_of_a_start_does_not_count():
    rest = working(0, 0, 300)
    long: list[Event] = [Fault(100, 190, "stall")]
    around = [*working(1, 0, 100), *working(1, 200, 300)]
    assert found(rest, around, long) == []
    # The start of another slot's driver is no excuse.
    assert found(rest, around, [Started(100, 190, 1)]) == []
    assert len(found(rest, around, [Started(100, 190, 0)])) == 1


def test_overlapping_faults_are_counted_once():
    twice: list[Event] = [Fault(100, 110, "stall"), Fault(105, 115, "broker")]
    around = [*working(1, 0, 100), *working(1, 98 + 20 + QUIET_S, 300)]
    assert len(found(working(0, 0, 300), around, twice)) == 1
    around = [*working(1, 0, 100), *working(1, 98 + 20 + QUIET_S - 1, 300)]
    assert found(working(0, 0, 300), around, twice) == []


def test_long_faults_explain_more_errors():
    failed: list[Event] = [Failed(100 + number / 10, 0, "KafkaUnavailable") for number in range(100)]
    both = [*working(0, 0, 300), *working(1, 0, 300)]
    assert len(found(both, failed)) == 1
    assert found(both, failed, [Fault(100, 125, "refuse")]) == []
