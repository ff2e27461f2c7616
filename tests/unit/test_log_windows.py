"""What the auditor's reader does with what a consumer returns."""

from types import SimpleNamespace
from uuid import UUID

import numpy as np
import pytest

from exactbatch.audit.log_windows import Block, LogWindows
from exactbatch.errors import ReadFailed
from exactbatch.model import LogPartition


def test_offsets_that_do_not_ascend_are_refused() -> None:
    partition = LogPartition(
        topic="t",
        partition=0,
        topic_id=UUID(int=0),
        leader_epoch=None,
        earliest=0,
        last_stable=20,
        high_watermark=20,
    )
    windows = LogWindows({}, partition, 0, 0)
    blocks = [Block(np.array(offsets, np.int64), np.empty(0, np.int64)) for offsets in ([0, 1, 2], [2, 3])]
    client = SimpleNamespace(get_watermark_offsets=lambda *_, **__: (0, 20))
    windows._reader = SimpleNamespace(client=client, read=lambda: (blocks.pop(0), None, None))  # type: ignore[assignment]
    reading = windows.window(20)
    assert next(reading).offsets.tolist() == [0, 1, 2]
    with pytest.raises(ReadFailed, match=r"t\[0\] offset 2: .* comes after offset 2"):
        next(reading)
