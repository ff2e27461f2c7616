"""`python tests/faults/promotions.py 100`: a replica takes the place of the primary, again and again, under batches.

Half of the replicas are synchronous, the others have been made to fall behind. Exit status 0 only when after each
promotion the next batches made every target exact. The table goes to standard output, as Markdown.
"""

import os
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from cases import SINKS
from confluent_kafka.admin import AdminClient, NewTopic
from failover import Life, Promotion, drawn
from pyspark.sql import SparkSession
from replicas import Pair

from conftest import HOME, Topic
from exactbatch.local import LocalStack
from jvm import quick_kafka, quick_spark


def main(
    promotions: Annotated[int, typer.Argument(help="how many")] = 20,
    seed: Annotated[int | None, typer.Option(help="which moments; random ones if none is given")] = None,
) -> None:
    """Promote, check, and print what was lost and read again."""
    seed = secrets.randbits(32) if seed is None else seed
    chance = random.Random(seed)
    _say(f"seed {seed}")
    os.environ["KAFKA_OPTS"] = quick_kafka(HOME)
    with ExitStack() as until:
        folder = Path(until.enter_context(tempfile.TemporaryDirectory()))
        stack = LocalStack(HOME, name=f"promotions-{os.getpid()}")
        until.callback(stack.down, delete=True)
        stack.broker.configure({}, None, anywhere=True)
        stack.broker.start()
        pair = Pair(HOME, f"promotions-{os.getpid()}")
        until.callback(pair.close)
        spark = _spark()
        until.callback(spark.stop)
        lives = [
            Life(spark, pair, _topic(stack, f"t{n}{sink}"), folder, sink) for n, sink in enumerate(SINKS)
        ]
        print("| # | sink | replica | moment | batches lost | records read again | the batch | seconds |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        done = []
        for number in range(promotions):
            life, synchronous = lives[number % len(lives)], number % 2 == 0
            moment, after, lost = drawn(chance, life)
            began = time.monotonic()
            pair.attach(synchronous=synchronous)
            done.append(life.promoted(moment, synchronous=synchronous, lost=lost, chance=after))
            print(_row(number + 1, done[-1], time.monotonic() - began), flush=True)
        print(_summary(done))


def _spark() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    here = Path(__file__).parent
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here), str(here.parents[1] / "jobs")])
    session = (
        SparkSession.builder.master("local[2, 2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.daemon.module", "warm_daemon")
        .config("spark.driver.extraJavaOptions", quick_spark(HOME))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


def _topic(stack: LocalStack, name: str) -> Topic:
    admin = AdminClient(dict(stack.kafka_properties))
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    while name not in admin.list_topics(timeout=30).topics:
        time.sleep(0.05)
    return Topic(name, dict(stack.kafka_properties))


def _row(number: int, each: Promotion, seconds: float) -> str:
    replica = "synchronous" if each.synchronous else "behind"
    return (
        f"| {number} | {each.sink} | {replica} | {each.moment} | {each.lost} | {each.read_again} | "
        f"{each.ended} | {seconds:.1f} |"
    )


def _summary(done: list[Promotion]) -> str:
    ended = Counter(each.ended for each in done)
    parts = []
    for synchronous, name in ((True, "synchronous"), (False, "behind")):
        these = [each for each in done if each.synchronous is synchronous]
        lost, again = sum(each.lost for each in these), sum(each.read_again for each in these)
        parts.append(f"{len(these)} {name}: {lost} batches lost, {again} records read again")
    return (
        f"\n{len(done)} promotions, exact after each. {'; '.join(parts)}. The batches ended: {dict(ended)}."
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
