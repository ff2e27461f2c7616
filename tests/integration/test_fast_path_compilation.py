"""The compiled loops are compiled again, with other options: what that takes, no unit test should."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from support.new_process import run

pytestmark = pytest.mark.slow

_FUZZ = """
import sys
from exactbatch import Json
from exactbatch.compiled.availability import prepare
from support.kernel_comparison import compare
from support.mutated_values import mutated
from support.plausible_values import PlausibleValues

prepare()
schema = "i int, f float8, r real, d numeric(10,2), n numeric, t boolean, name text, at timestamptz, j jsonb, day date"
format_ = Json(schema)
for seed in range(int(sys.argv[1])):
    samples = list(PlausibleValues(format_.columns, {}, seed).values(200))
    # One value at a time in a buffer of its own size shows a read past its end.
    for value in mutated(samples, 300, seed):
        compare(format_, [value])
    compare(format_, [value[:cut] for value in samples[:20] for cut in range(len(value))])
    compare(format_, list(mutated(samples, 2000, seed)))
print("right")
"""


def test_two_processes_compile_at_once_with_bounds_checked_for_a_processor_that_llvm_does_not_know(tmp_path):
    """With NUMBA_BOUNDSCHECK, an index outside of an array is an error."""
    environment = {
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "NUMBA_CPU_NAME": "no-such-cpu",
    }
    with ThreadPoolExecutor() as threads:
        both = list(threads.map(lambda _: run(_FUZZ, "1", **environment), range(2)))
    for ended in [*both, run(_FUZZ, "1", **environment)]:
        assert (ended.stdout, ended.returncode) == ("right\n", 0), ended.stderr
    assert list(tmp_path.rglob("*.nbi"))
