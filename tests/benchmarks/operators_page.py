"""How long the page in Airflow takes to get its data, and how much it gets, over a long history.

Fills a ledger of 100 pipelines, 1,000 partitions and a million rows of coverage by SQL, nearly all of them those of one
pipeline, serves Airflow with a DAG for each, and asks each route as a viewer. Prints the milliseconds of the first, of
the median and of the fastest request, the CPU milliseconds of Airflow's server, and the bytes, and writes
build/page-bench.json. Ends with exit status 1 unless all medians and first requests are within the limits.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import psutil  # noqa: E402 - below the path to tests/support
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from exactbatch import Append, Json, Pipeline  # noqa: E402
from exactbatch.ledger import migrate  # noqa: E402
from exactbatch.local import LocalStack  # noqa: E402
from exactbatch.postgres.connection import connect  # noqa: E402
from support.environment import HOME  # noqa: E402
from support.jvm import quick_kafka  # noqa: E402
from support.large_ledger import History, fill  # noqa: E402
from support.page_airflow import client_of, serving_airflow  # noqa: E402

REPORT: Final = ROOT / "build" / "page-bench.json"
LIMIT_MS, LIMIT_BYTES = 300, 200_000  # of each answer
PARTITIONS: Final = 10
_RUNS: Final = 7


def pipeline_named(name: str) -> Pipeline:
    """Return a pipeline over a topic of its name."""
    return Pipeline(name=name, topics=(name,), value=Json("id int"), sink=Append(f"public.{name}"))


def main() -> None:
    """Fill, serve, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=100_000, help="of the pipeline with a long history")
    parser.add_argument("--pipelines", type=int, default=100)
    arguments = parser.parse_args()
    os.environ["KAFKA_OPTS"] = quick_kafka(HOME)
    stack = LocalStack(HOME, name="operators-page")
    try:
        stack.up()
        grown = History(pipeline_named("grown"), arguments.batches, PARTITIONS)
        others = [History(pipeline_named(f"p{n:03}"), 30, PARTITIONS) for n in range(1, arguments.pipelines)]
        connection = connect(stack.postgres_dsn, application="benchmark", timeout=60)
        migrate(connection)
        for history in (grown, *others):
            fill(connection, history)
        connection.close()
        names = [history.topic for history in (grown, *others)]
        admin = AdminClient(dict(stack.kafka_properties))
        for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
            future.result(120)
        folder = Path(tempfile.mkdtemp())
        with serving_airflow(stack, [history.pipeline for history in (grown, *others)], folder) as airflow:
            answers = measure(
                client_of(airflow, "viewer"), psutil.Process(airflow.pid("api-server")), grown.end
            )
    finally:
        stack.down(delete=True)
    slow = [name for name, each in answers.items() if max(each["first_ms"], each["median_ms"]) >= LIMIT_MS]
    large = [name for name, each in answers.items() if each["bytes"] >= LIMIT_BYTES]
    report = {
        "pipelines": arguments.pipelines,
        "partitions": arguments.pipelines * PARTITIONS,
        "coverage_rows": sum(history.batches for history in (grown, *others)) * PARTITIONS,
        "load_average": os.getloadavg()[1],
        "limits": {"ms": LIMIT_MS, "bytes": LIMIT_BYTES},
        "slow": slow,
        "large": large,
        "answers": answers,
    }
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(1 if slow or large else 0)


def measure(client, server, end):  # type: ignore[no-untyped-def]
    """Ask each route several times; return milliseconds and bytes by name."""
    one = "/exactbatch/data/pipelines/grown"
    paths = {
        "all pipelines": "/exactbatch/data/pipelines",
        "one pipeline": one,
        "strips, whole log": f"{one}/strips?steps=900&until={end}",
        "strips, a tenth": f"{one}/strips?steps=900&first={end // 2}&until={end // 2 + end // 10}",
        "strips, 400 batches": f"{one}/strips?steps=900&first={end // 2}&until={end // 2 + 4000}",
        "strips, 20 records": f"{one}/strips?steps=900&first={end // 2}&until={end // 2 + 20}",
        "batches": f"{one}/batches?limit=50",
        "rejects by reason": f"{one}/rejects",
        "rejects of a reason": f"{one}/rejects/list?kind=not a JSON object",
        "lag": f"{one}/lag",
        "gaps, a portion": f"{one}/gaps",
    }
    results = {}
    for name, path in paths.items():
        times, sizes = [], []
        before = _cpu(server)
        for _ in range(_RUNS):
            started = time.perf_counter()
            answer = client.get(path)
            times.append((time.perf_counter() - started) * 1000)
            assert answer.status_code == 200, answer.text
            sizes.append(len(answer.content))
        results[name] = {
            "first_ms": round(times[0]),
            "median_ms": round(statistics.median(times[1:])),
            "fastest_ms": round(min(times)),
            "cpu_ms": round((_cpu(server) - before) * 1000 / _RUNS),
            "bytes": max(sizes),
        }
        print(f"{name:24} {results[name]}", flush=True)  # noqa: T201
    return results


def _cpu(server: psutil.Process) -> float:
    """CPU seconds of the server and its workers."""
    return sum(
        sum(each.cpu_times()[:2]) for each in (server, *server.children(recursive=True)) if each.is_running()
    )


if __name__ == "__main__":
    main()
