"""`python -m support.faults.promotions 100`, with PYTHONPATH=jobs:tests: promote a replica under load, again and
again.

Half of the replicas are synchronous, the others have been made to fall behind. One pipeline is at a chosen moment
of a batch then, another one works without a break. Exit status 0 only when after each promotion the next batches
made both targets exact. The table goes to standard output, as Markdown.
"""

import logging
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
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from exactbatch.local import LocalStack
from support.environment import HOME, JOBS, TESTS
from support.faults.cases import SINKS
from support.faults.failover import Life, Promotion
from support.faults.replicas import Pair
from support.jvm import quick_kafka, quick_spark
from support.stacks import new_stack
from support.topics import Topic

_HEAD = "| # | sink | replica | batch | moment | batches lost | records read again | the batch | beside it |"


def main(
    promotions: Annotated[int, typer.Argument(help="how many")] = 20,
    seed: Annotated[int | None, typer.Option(help="which moments; random ones if none is given")] = None,
) -> None:
    """Promote, check, and print what was lost and read again."""
    seed = secrets.randbits(32) if seed is None else seed
    chance = random.Random(seed)
    logging.disable()  # each broken connection is told of, by us and by Spark
    os.environ["KAFKA_OPTS"] = quick_kafka(HOME)
    with ExitStack() as until:
        folder = Path(until.enter_context(tempfile.TemporaryDirectory()))
        stack = new_stack("promotions")
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
        _say(f"seed {seed}\n\n{_HEAD}\n{'| --- ' * _HEAD.count(' | ')}| --- |")
        done: list[Promotion] = []
        beside, began = 0, time.monotonic()
        for number in range(promotions):
            life, other = lives[number % len(lives)], lives[(number + chance.randrange(1, 5)) % len(lives)]
            found, lost = _promoted(chance, life, other, pair, synchronous=number % 2 == 0)
            done.append(found)
            beside += lost
            _say(_row(number + 1, found, f"{other.sink}: {lost} lost"))
        _say(_summary(done, beside, time.monotonic() - began))


def _promoted(
    chance: random.Random, life: Life, other: Life, pair: Pair, *, synchronous: bool
) -> tuple[Promotion, int]:
    """One promotion, and how many batches the pipeline beside it has lost."""
    kind = chance.choice(("advance", "advance", "replay"))
    pair.attach(synchronous=synchronous)
    with other.working():
        found = life.promoted(
            chance.choice(life.moments(kind)),
            synchronous=synchronous,
            kind=kind,
            lost=chance.randrange(3),
            chance=chance.uniform(0.0, 1.0),
        )
    lost = len(other.gone())
    assert not (lost and synchronous), f"synchronous replication has lost {other.gone()}"
    return found, lost


def _spark() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(JOBS)])
    session = (
        SparkSession.builder.master("local[2, 2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.daemon.module", "support.warm_daemon")
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


def _row(number: int, each: Promotion, beside: str) -> str:
    replica = "synchronous" if each.synchronous else "behind"
    return (
        f"| {number} | {each.sink} | {replica} | {each.kind} | {each.moment} | {each.lost} | {each.read_again} | "
        f"{each.ended} | {beside} |"
    )


def _summary(done: list[Promotion], beside: int, seconds: float) -> str:
    ended = ", ".join(f"{count} {how}" for how, count in Counter(each.ended for each in done).most_common())
    parts = []
    for synchronous, name in ((True, "synchronous"), (False, "behind")):
        these = [each for each in done if each.synchronous is synchronous]
        lost, again = sum(each.lost for each in these), sum(each.read_again for each in these)
        parts.append(f"{len(these)} {name}: {lost} batches lost, {again} records read again")
    return (
        f"\n{len(done)} promotions in {seconds:.0f} s, exact after each. {'; '.join(parts)}; {beside} batches "
        f"lost beside them. The batches ended: {ended}."
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
