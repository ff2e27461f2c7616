"""What the auditor's reader does with what a consumer returns."""

from types import SimpleNamespace

import pytest
from confluent_kafka import Message

from exactbatch.audit.log_windows import Block, LogWindows
from exactbatch.errors import ReadFailed
from support.logs import log


def test_offsets_that_do_not_ascend_are_refused() -> None:
    windows = LogWindows({}, log(last_stable=20), 0, 0)
    blocks = [Block.of([Message("t", 0, offset) for offset in offsets]) for offsets in ([0, 1, 2], [2, 3])]
    client = SimpleNamespace(get_watermark_offsets=lambda *_, **__: (0, 20))
    windows._reader = SimpleNamespace(client=client, read=lambda: (blocks.pop(0), None, None))  # type: ignore[assignment]
    reading = windows.window(20)
    assert next(reading).offsets.tolist() == [0, 1, 2]
    with pytest.raises(ReadFailed, match=r"t\[0\] offset 2: .* comes after offset 2"):
        next(reading)
