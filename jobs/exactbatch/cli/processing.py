"""Process batches with Spark, in this process or on a Spark Connect server."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from exactbatch.batch.engines.connect_url import find_address, is_connect
from exactbatch.batch.engines.driver_engine import DriverEngine
from exactbatch.batch.job import process_batch
from exactbatch.batch.process_batches import Outcome, process_batches
from exactbatch.batch.spark.spark_session import spark_session
from exactbatch.batch.staging.shares import Engine
from exactbatch.cli.console import out, print_json
from exactbatch.cli.progress import counting, following
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Batch
from exactbatch.model import PlannedBatch
from exactbatch.operations.report import load_report
from exactbatch.pipeline import Pipeline
from exactbatch.settings import Settings
from exactbatch.tables import Tables


def process_planned(
    pipeline: Pipeline, settings: Settings, planned: tuple[Batch, int], master: str, *, as_json: bool
) -> None:
    """Process a batch and its number of offsets, as find_planned() returns them, with Spark, and print its report."""
    batch, offsets = planned
    shown = find_address(master) if is_connect(master) else master
    with (
        counting(f"Batch {batch.batch_id} with Spark on {shown}") as update,
        _engine(pipeline, master, offsets) as engine,
        following(batch, settings, update),
    ):
        process_batch(engine, pipeline, batch.batch_id, settings, batch.plan_id)
    broker = KafkaBroker(settings.kafka)
    report = load_report(settings.postgres, broker, pipeline, batch.batch_id, batch.plan_id)
    print_json(report.as_json()) if as_json else out.print(report.as_table())


@contextmanager
def _engine(pipeline: Pipeline, master: str, offsets: int) -> Iterator[Engine]:
    """Start a Spark driver in this process, or use the Spark Connect server that `master` names. `offsets` says how
    many a batch has."""
    if is_connect(master):
        # PySpark's client of a server takes a second to import.
        from exactbatch.batch.engines.connect_engine import ConnectEngine

        yield ConnectEngine(master)
        return
    with spark_session(pipeline, master=master, offsets=offsets) as spark:
        yield DriverEngine(spark)


def process_tables(
    tables: Tables, settings: Settings, batches: Sequence[PlannedBatch], master: str
) -> list[Outcome]:
    """Process batches of the members of Tables with one Spark driver, and return what became of each."""
    with spark_session(tables, master=master) as spark:
        return process_batches(DriverEngine(spark), tables, batches, settings)
