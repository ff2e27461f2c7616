"""Hostile records of every format, with hostile schemas, keys and headers: each is counted once, and none ends a batch.

EXACTBATCH_SEED repeats a run; `make fuzz` takes minutes for each format.
"""

import os
import subprocess
import sys

import pytest

from support.environment import FUZZ_MINUTES, TESTS, draw_seed
from support.fuzzed_formats import FORMATS

SECONDS = 60 * FUZZ_MINUTES or 3


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_records_are_rows_or_rejects_in_2_gb(name):
    """A process of its own has little address space: so much as a worker of Spark should have."""
    # Arrow's own allocator, and glibc for each thread, reserve address space that they do not use.
    lean = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "support.fuzzed_formats", name, str(SECONDS), str(draw_seed())]
    done = subprocess.run(command, env=os.environ | lean, capture_output=True, text=True, check=False)
    print(done.stdout[-500:])  # noqa: T201 - shown by -s
    assert done.returncode == 0, (done.returncode, done.stdout[-20_000:], done.stderr[-5_000:])
