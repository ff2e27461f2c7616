"""Queries that are allowed give the same rows however the records are cut: in a run, a replay of some, on a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from pyspark.sql import functions as F

from exactbatch.transforms.refused_plan import marked
from support.transform_queries import ONE_AT_A_TIME, SEVERAL, STATIC, VALUES

pytestmark = pytest.mark.slow

ROWS: Final = 60
PART: Final = {20 // 2 + number // 2 + number % 2 * 1000 for number in range(20)}


class Variants:
    """The same records, as a run, a replay of a part and a replay of all have them, on other machines."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        whole = spark.sql(VALUES.format(rows=ROWS)).cache()
        whole.count()
        self._frames = {
            "run": whole.repartitionByRange(3, "id"),
            "part": whole.where("id between 20 and 39").repartitionByRange(2, "id"),
            "again": whole.repartition(7, F.xxhash64("id")).sortWithinPartitions(F.desc("id")),
        }
        spark.sql(STATIC).createOrReplaceTempView("static")

    @contextmanager
    def _view(self, variant: str) -> Iterator[None]:
        """Let the view `records` be one of these, in a JVM of another place for `again`."""
        marked(self._frames[variant]).createOrReplaceTempView("records")
        util = self._spark._jvm.java.util
        zone, locale = util.TimeZone.getDefault(), util.Locale.getDefault()
        partitions = self._spark.conf.get("spark.sql.shuffle.partitions")
        if variant == "again":
            util.TimeZone.setDefault(util.TimeZone.getTimeZone("Asia/Tokyo"))
            util.Locale.setDefault(util.Locale.forLanguageTag("tr-TR"))
            self._spark.conf.set("spark.sql.shuffle.partitions", "5")
        try:
            yield
        finally:
            util.TimeZone.setDefault(zone)
            util.Locale.setDefault(locale)
            self._spark.conf.set("spark.sql.shuffle.partitions", partitions)

    def rows(self, query: str, variant: str) -> list[tuple[Any, ...]]:
        """What a query over the view gives, in an order of its own."""
        with self._view(variant):
            return sorted((tuple(row) for row in self._spark.sql(query).collect()), key=repr)


@pytest.fixture
def variants(spark):
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield Variants(spark)
    spark.catalog.clearCache()


def are_alike(variants: Variants, query: str) -> bool:
    """A replay of all gives the rows of the run, and one of a part the rows that the run had given for its records."""
    queried = f"select kafka_partition * 1000 + kafka_offset, * from ({query})"
    run = variants.rows(queried, "run")
    assert any(run)
    of_part = [row for row in run if row[0] in PART]
    return run == variants.rows(queried, "again") and of_part == variants.rows(queried, "part")


@pytest.mark.parametrize("query", ONE_AT_A_TIME[::4])
def test_operators_give_the_same_however_records_are_cut(variants, query):
    assert are_alike(variants, query)


@pytest.mark.long
@pytest.mark.parametrize("query", ONE_AT_A_TIME)
def test_every_operator_gives_the_same_however_records_are_cut(variants, query):
    assert are_alike(variants, query)


@pytest.mark.long
@pytest.mark.parametrize(("query", "_names"), SEVERAL)
def test_every_operator_over_batch_gives_same_however_it_is_cut(variants, query, _names):
    assert variants.rows(query, "run") == variants.rows(query, "again")


@pytest.mark.parametrize("expression", ["spark_partition_id()", "count(*) over (partition by small)"])
def test_the_comparison_sees_what_depends_on_the_cut(variants, expression):
    assert not are_alike(variants, f"select *, {expression} as x from records")
