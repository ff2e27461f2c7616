"""A consumer that librdkafka never closes holds nobody up."""

import logging
import threading
import time

import pytest

from exactbatch.kafka import consumer as module
from exactbatch.kafka.consumer import closing_consumer
from support.environment import ROOT


class Stuck:
    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def close(self) -> None:
        self.goes_on.wait(60)


def test_a_consumer_that_does_not_close_is_left_behind_and_the_error_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(module, "_TIMEOUT", 0.2)
    stuck, begin = Stuck(), time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(KeyError), closing_consumer(stuck):
        raise KeyError
    assert time.monotonic() - begin < 30
    assert "librdkafka has not closed a consumer within 0.2 s" in caplog.text
    assert [each.daemon for each in threading.enumerate() if each.name == "close consumer"] == [True]
    stuck.goes_on.set()


def test_an_error_of_closing_is_raised():
    class Broken:
        def close(self) -> None:
            raise RuntimeError("closed already")

    with pytest.raises(RuntimeError, match="closed already"), closing_consumer(Broken()):
        pass


def test_no_consumer_that_reads_is_closed_without_a_limit():
    """A lookup of broken properties, which connects to nothing, is the only exception."""
    found = [
        f"{file.name}: {line.strip()}"
        for folder in ("kafka", "audit", "forwarding", "operations")
        for file in sorted((ROOT / "jobs/exactbatch" / folder).rglob("*.py"))
        for line in file.read_text().splitlines()
        if "closing(Consumer(" in line
        or "closing(consumer)" in line
        or ("onsumer" in line and ".close()" in line)
    ]
    assert [each.partition(":")[0] for each in found] == ["client_properties.py", "consumer.py"], found
