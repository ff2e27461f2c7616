"""A batch takes the stops of docs/architecture.md, past few files and few frames."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "trace_batch.py"


@pytest.mark.slow
def test_a_batch_passes_at_most_thirty_files_and_fifteen_frames():
    printed = subprocess.run(
        [sys.executable, PROGRAM], check=True, stdout=subprocess.PIPE, text=True, timeout=300
    ).stdout
    assert [int(each) for each in re.findall(r"^(\d+)\. ", printed, re.MULTILINE)] == list(range(1, 11))
    assert "NOT REACHED" not in printed
    [files] = re.findall(r"^(\d+) files from the DAG to the commit", printed, re.MULTILINE)
    [frames] = re.findall(r"^(\d+) frames of ours from Spark's call to the COPY", printed, re.MULTILINE)
    assert 10 <= int(files) <= 30, printed
    assert 5 <= int(frames) <= 15, printed
