"""The benchmarks' own parts that a run of many minutes would find broken."""

import subprocess
import sys

from support.environment import TESTS

_BUILD = """
from pathlib import Path
from shapes import SHAPES
from ways import WAYS, Place

for shape in SHAPES.values():
    place = Place(
        kafka={}, postgres="", topic="t", jars=(), connect_jars=(), scratch=Path(), shape=shape, rows=10,
        registry="http://127.0.0.1",
    )
    for way in WAYS:
        if way.pipeline is not None and shape.name in way.shapes:
            print(shape.name, way.pipeline(place).name)
"""


def test_every_shape_of_records_has_a_pipeline_for_each_of_its_ways():
    done = subprocess.run(
        [sys.executable, "-c", _BUILD], cwd=TESTS / "benchmarks", capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert len(set(done.stdout.splitlines())) > 20
