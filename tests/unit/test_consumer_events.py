"""The messages of one consume() are split into records, the end of the log, and an error that concerns reading."""

from types import SimpleNamespace

from confluent_kafka import KafkaError

from exactbatch.kafka.client_errors import split_events


def record(offset):
    return SimpleNamespace(error=lambda: None, offset=lambda: offset)


def event(code, *, topic="t", offset=-1001, fatal=False):
    error = SimpleNamespace(code=lambda: code, fatal=lambda: fatal)
    return SimpleNamespace(error=lambda: error, offset=lambda: offset, topic=lambda: topic)


def end_of_log(offset):
    return event(KafkaError._PARTITION_EOF, offset=offset)


def test_records_alone_are_returned_as_they_are():
    messages = [record(1), record(2)]
    assert split_events(messages) == (messages, None, None)
    assert split_events([]) == ([], None, None)


def test_the_last_end_of_the_log_counts():
    first, second = record(1), record(2)
    assert split_events([first, end_of_log(2), second, end_of_log(3)]) == ([first, second], 3, None)


def test_an_event_of_the_groups_coordinator_is_no_error_unless_it_is_fatal():
    before, after = record(1), record(2)
    denied = event(KafkaError.GROUP_AUTHORIZATION_FAILED, topic=None)
    assert split_events([before, denied, after]) == ([before, after], None, None)
    fatal = event(KafkaError._FATAL, topic=None, fatal=True)
    assert split_events([before, fatal, after]) == ([before], None, fatal)


def test_messages_after_an_error_of_the_partition_are_dropped():
    before, error = record(1), event(KafkaError._AUTO_OFFSET_RESET)
    assert split_events([before, end_of_log(2), error, record(9), end_of_log(10)]) == ([before], 2, error)
