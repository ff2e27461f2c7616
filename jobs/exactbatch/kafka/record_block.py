"""The records of one partition as flat arrays: the form that compiled code reads."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """n records, ordered by offset; every array but `data` has n elements.

    data           the bytes of all values
    starts, ends   where each value lies in `data`, as the half-open range [start, end)
    offsets        in the log, ascending
    timestamps_ms  Kafka's timestamps, milliseconds since 1970 UTC
    present        false for a record with a null value, and for one whose timestamp Records.timestamps() gives as
                   null; its start, end and timestamp mean nothing
    """

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64]
    present: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.offsets)
