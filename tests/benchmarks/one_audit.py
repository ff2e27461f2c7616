"""Audit a topic of the benchmark once to warm up and once more, and print its seconds, its CPU seconds and its records.

Arguments: the topic, its shape, and `values` or `offsets`.
"""

import json
import sys
import time

from shapes import SHAPES
from ways import Place, one_transaction

from exactbatch.audit.run_audit import audit
from exactbatch.settings import Settings

topic, shape, what = sys.argv[1:]
settings = Settings.from_environment()
place = Place(
    kafka=settings.kafka,
    postgres=settings.postgres,
    topic=topic,
    jars=(),
    connect_jars=(),
    scratch=None,
    shape=SHAPES[shape],
)
for _ in range(2):
    seconds, cpu = time.perf_counter(), time.process_time()
    report = audit(one_transaction(place), settings, values=what == "values")
    seconds, cpu = time.perf_counter() - seconds, time.process_time() - cpu
sys.stdout.write(json.dumps([seconds, cpu, report.records if report.is_exact else str(report.findings)]))
