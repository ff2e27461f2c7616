"""What the auditor's reader does with what a consumer returns."""

from types import SimpleNamespace

import pytest
from confluent_kafka import Message

from exactbatch.audit import log_windows
from exactbatch.audit.log_windows import LogWindows
from exactbatch.errors import ReadFailed
from support.logs import log


def test_offsets_that_do_not_ascend_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    polls = [[Message("t", 0, offset) for offset in offsets] for offsets in ([0, 1, 2], [2, 3])]
    client = SimpleNamespace(
        assign=lambda _: None,
        consume=lambda *_: polls.pop(0),
        get_watermark_offsets=lambda *_, **__: (0, 20),
    )
    monkeypatch.setattr(log_windows, "Consumer", lambda _: client)
    reading = LogWindows.open({"bootstrap.servers": "broker:9092"}, log(last_stable=20), 0, 20).window(20)
    assert next(reading).offsets.tolist() == [0, 1, 2]
    with pytest.raises(ReadFailed, match=r"t\[0\] offset 2: .* comes after offset 2"):
        next(reading)
