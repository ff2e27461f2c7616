"""Choose how records are decoded: by compiled code if that pays and works, or by pyarrow.

Compiled code saves 20% of the time of loads of flat JSON, 30% with `layout="by_batch"`, and nothing of nested JSON
(docs/evidence/ablation.md).
"""

from typing import TYPE_CHECKING

from exactbatch.batch.rows.decode import ReadTask
from exactbatch.compiled.availability import is_available, pays

if TYPE_CHECKING:
    from exactbatch.batch.rows.fast_decoder import FastDecoder


def decoder_for(task: ReadTask, *, shares_reads: bool) -> "FastDecoder | None":
    """Return the decoder of a range for a transform; None if pyarrow decodes it. `shares_reads` is True if the range
    shares reads with others."""
    if shares_reads or not reads_fast(task):
        return None
    from exactbatch.batch.rows.fast_decoder import fast_decoder  # needs the extra `fast`

    return fast_decoder(task)


def reads_fast(task: ReadTask) -> bool:
    """True if compiled code pays for a range, and works."""
    # A worker loads the code once, and reads several ranges one after the other.
    return pays(max(len(task.range), task.slot_offsets)) and is_available()
