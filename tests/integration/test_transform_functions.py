"""Each of Spark's functions, and each operator, is refused or gives the same however the records are cut.

With EXACTBATCH_LONG=1 and EXACTBATCH_WRITE=1 it writes docs/transform-functions.md.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from spark_functions import RECORDS, Call, builtin, call
from test_allowed_plan import ONE_AT_A_TIME, SEVERAL, STATIC, VALUES

from exactbatch.transforms.allowed_expressions import DATELESS, UNKNOWN, Reason
from exactbatch.transforms.allowed_plan import findings, marked

DOC: Final = Path(__file__).parents[2] / "docs" / "transform-functions.md"
ROWS: Final = 60
CHUNK: Final = 40
# In `make test`: some of each kind.
CORE: Final = 3
# They need jars that are not among Spark's own; a metric view; a setting.
BY_JARS: Final = {"from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf"}
NOT_CALLED: Final = {*BY_JARS, "measure", "python_worker_logs"}


PAGE: Final = """\
# Functions that a transform may use

[transform.md](transform.md) says why. A test writes this page: it calls each function and looks at Spark's plan.

Spark {version} has {functions} functions, those included that are written as operators. {allowed} are allowed,
and {refused} are refused unless `allow_nondeterministic` names them. {compared} of the allowed ones the test
computes over the same records as a run, as a replay of a part of them, and as a replay of all of them: with
other partitions, in another order, and in a JVM with another time zone and language. The results are the same
each time.

## Allowed

Functions of many rows (agg_funcs, window_funcs) need a sink that works by batch, unless their rows are those of
another source. Refused are, all the same: `sum` of floating-point numbers; `avg` of these, of integers and of
bigints; `listagg` that is not ordered by its own text; `min` and `max` of text with a collation; a cast,
`to_date` or `to_timestamp` of 'now', 'today', 'tomorrow' or 'yesterday'; and whatever makes a timestamp of text
without being told its format: `to_timestamp(name)`, `hour(name)`, `from_json(name, 'at timestamp')`.
`collect_list` and `collect_set` are allowed directly within `sort_array`.

Allowed, and not tried here, because they need jars that Spark does not bring along: {by_jars}.

| group | functions |
| --- | --- |
{by_group}

## Refused unless allowed by name

| because it … | functions | number |
| --- | --- | --- |
{by_reason}
"""

# These raise an error with any arguments.
RAISING: Final = {"raise_error"}


class Variants:
    """The same records, as a run, a replay of a part and a replay of all have them, on other machines."""

    def __init__(self, spark: Any, records: str) -> None:
        self._spark = spark
        whole = spark.sql(records.format(rows=ROWS)).cache()
        whole.count()
        self._frames = {
            "run": whole.repartitionByRange(3, "id"),
            "part": whole.where("id between 20 and 39").repartitionByRange(2, "id"),
            "again": whole.repartition(7, F.xxhash64("id")).sortWithinPartitions(F.desc("id")),
        }
        spark.sql(STATIC).createOrReplaceTempView("static")

    @contextmanager
    def view(self, variant: str) -> Iterator[None]:
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

    def rows(self, query: str, variant: str) -> list[tuple[Any, ...]] | str:
        """What a query over the view gives, in an order of its own; or the error."""
        with self.view(variant):
            try:
                return sorted((tuple(row) for row in self._spark.sql(query).collect()), key=repr)
            except (PySparkException, Py4JJavaError) as error:
                return str(error).splitlines()[0]


@pytest.fixture
def variants(spark: Any) -> Iterator[Variants]:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield Variants(spark, RECORDS)
    spark.catalog.clearCache()
    spark.conf.unset("spark.sql.timeType.enabled")


def in_part(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row for row in rows if 20 <= row[0] <= 39]


@dataclass
class Comparison:
    """What came of computing calls over each of the variants."""

    variants: Variants
    alike: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    raising: list[str] = field(default_factory=list)

    def compare(self, calls: list[Call]) -> None:
        """Compute each call, many at once where that is possible."""
        for chunk in _chunks(calls):
            query = _query_of(chunk)
            run = self.variants.rows(query, "run")
            if isinstance(run, str):
                self._without_errors(chunk, run)
                continue
            again = self.variants.rows(query, "again")
            part = self.variants.rows(query, "part") if chunk[0].kind in ("row", "generator") else None
            if run == again and (part is None or in_part(run) == part):
                self.alike += [each.name for each in chunk]
            elif len(chunk) > 1:
                self.compare(chunk[: len(chunk) // 2])
                self.compare(chunk[len(chunk) // 2 :])
            else:
                self.differing.append(f"{query}: {run} / {again} / {part}")

    def _without_errors(self, chunk: list[Call], said: str) -> None:
        if len(chunk) > 1:
            self.compare(chunk[: len(chunk) // 2])
            self.compare(chunk[len(chunk) // 2 :])
        elif chunk[0].plainer is not None:
            self.compare([chunk[0].plainer])
        else:
            self.raising.append(f"{chunk[0].name}: {said}")


def _query_of(chunk: list[Call]) -> str:
    if len(chunk) == 1:
        [one] = chunk
        return one.query.replace(f"{one.expression} as x", f"{one.rendered} as x", 1).format(
            records="records"
        )
    columns = ", ".join(f"{each.rendered} as c{number}" for number, each in enumerate(chunk))
    if chunk[0].kind == "group":
        return f"select small, {columns} from records group by small".replace("{{", "{").replace("}}", "}")
    return f"select id, {columns} from records".replace("{{", "{").replace("}}", "}")


def _chunks(calls: list[Call]) -> Iterator[list[Call]]:
    """Calls that one query can make."""
    alone = [
        each for each in calls if each.kind == "generator" or not each.query.endswith(("{records}", "small"))
    ]
    yield from ([each] for each in alone)
    for kind in ("row", "window", "group"):
        alike = [each for each in calls if each.kind == kind and each not in alone]
        yield from (alike[start : start + CHUNK] for start in range(0, len(alike), CHUNK))


def judged(spark: Any, variants: Variants, infos: list[Any]) -> tuple[dict[str, Reason | None], list[Call]]:
    """Why each function is refused, or None; and the calls of those that are allowed."""
    reasons: dict[str, Reason | None] = {}
    allowed = []
    with variants.view("run"):
        for info in infos:
            made = call(spark, info)
            if isinstance(made, str):
                assert info.getName() in NOT_CALLED, f"{info.getName()}: {made}"
                continue
            found = findings(made.frame, by_record=False)
            # Many examples make a timestamp of a text: allowed of a constant, and not of what a record holds.
            while found and found[0].reason == DATELESS and made.plainer is not None:
                made = made.plainer
                found = findings(made.frame, by_record=False)
            reasons[made.name] = found[0].reason if found else None
            if not found and made.kind != "statement":
                allowed.append(made)
    return reasons, allowed


def test_the_page_names_each_function_that_spark_has(spark: Any) -> None:
    page = DOC.read_text()
    missing = [each.getName() for each in builtin(spark) if _listed([each.getName()]) not in page]
    assert missing == []
    assert f"Spark {pyspark.__version__}" in page


def test_functions_that_are_allowed_give_the_same_however_records_are_cut(
    spark: Any, variants: Variants
) -> None:
    infos = builtin(spark)
    by_group = defaultdict(list)
    for info in infos:
        by_group[info.getGroup()].append(info)
    some = [info for group in by_group.values() for info in group[:: len(group) // CORE + 1]]
    reasons, allowed = judged(spark, variants, some)
    page = DOC.read_text()
    for name, reason in reasons.items():
        assert _listed([name]) in _part_of(page, reason), f"{name}: {reason}"
    compared = Comparison(variants)
    compared.compare(allowed)
    assert compared.differing == []


@pytest.mark.long
def test_every_function_that_is_allowed_gives_the_same_however_records_are_cut(
    spark: Any, variants: Variants
) -> None:
    reasons, allowed = judged(spark, variants, builtin(spark))
    compared = Comparison(variants)
    compared.compare(allowed)
    assert compared.differing == []
    assert {each.partition(":")[0] for each in compared.raising} <= RAISING
    groups = {info.getName(): info.getGroup() for info in builtin(spark)}
    page = rendered(reasons, groups, len(compared.alike))
    if os.environ.get("EXACTBATCH_WRITE"):
        DOC.write_text(page)
    assert DOC.read_text() == page


@pytest.mark.parametrize(
    ("kind", "expression"),
    [
        ("row", "spark_partition_id()"),
        ("row", "count(*) over (partition by small)"),
        ("row", "current_timezone() || date_format(timestamp 'now', 'SSSSSS')"),
        ("group", "collect_list(id)"),
        ("group", "sum(fraction * 0.1d)"),
    ],
)
def test_the_comparison_sees_what_depends_on_the_cut(
    spark: Any, variants: Variants, kind: Any, expression: str
) -> None:
    frame = spark.range(1).select(F.lit(1).alias("x"))
    ending = "group by small" if kind == "group" else ""
    columns = "" if kind == "group" else "id, "
    query = f"select {columns}{expression} as x from {{records}} {ending}"
    compared = Comparison(variants)
    compared.compare([Call("it", "", kind, expression, query.strip(), frame)])
    assert (compared.alike, len(compared.differing)) == ([], 1)


@pytest.mark.parametrize("query", ONE_AT_A_TIME[::4])
def test_operators_give_the_same_however_records_are_cut(spark: Any, query: str) -> None:
    check_operator(spark, query)


@pytest.mark.long
@pytest.mark.parametrize("query", ONE_AT_A_TIME)
def test_every_operator_gives_the_same_however_records_are_cut(spark: Any, query: str) -> None:
    check_operator(spark, query)


@pytest.mark.long
@pytest.mark.parametrize(("query", "_names"), SEVERAL)
def test_every_operator_over_a_batch_gives_the_same_however_it_is_cut(
    spark: Any, query: str, _names: list[str]
) -> None:
    variants = Variants(spark, VALUES)
    assert variants.rows(query, "run") == variants.rows(query, "again")


def check_operator(spark: Any, query: str) -> None:
    """A replay of a part gives the rows that the run had given for its records."""
    variants = Variants(spark, VALUES)
    queried = f"select kafka_partition * 1000 + kafka_offset, * from ({query})"
    run = variants.rows(queried, "run")
    assert run == variants.rows(queried, "again")
    assert isinstance(run, list)
    assert any(run)
    of_part = {20 // 2 + number // 2 + number % 2 * 1000 for number in range(20)}
    assert [row for row in run if row[0] in of_part] == variants.rows(queried, "part")


def _part_of(page: str, reason: Reason | None) -> str:
    """The part of the page where functions are that are refused for a reason, or allowed."""
    allowed, _, refused = page.partition("## Refused")
    if reason is None:
        return allowed
    return next(line for line in refused.splitlines() if line.startswith(f"| {reason.why} |"))


def rendered(reasons: dict[str, Reason | None], groups: dict[str, str], compared: int) -> str:
    """The page that says of each function whether a transform may use it."""
    by_group, by_reason = defaultdict(list), defaultdict(list)
    for name in sorted(set(groups) - BY_JARS):
        if (reason := reasons.get(name, None if name in reasons else UNKNOWN)) is None:
            by_group[groups[name]].append(name)
        else:
            by_reason[reason].append(name)
    return PAGE.format(
        version=pyspark.__version__,
        functions=len(groups),
        allowed=sum(map(len, by_group.values())) + len(BY_JARS),
        refused=sum(map(len, by_reason.values())),
        compared=compared,
        by_jars=_listed(sorted(BY_JARS)),
        by_group="\n".join(f"| {group} | {_listed(names)} |" for group, names in sorted(by_group.items())),
        by_reason="\n".join(
            f"| {reason.why} | {_listed(names)} | {len(names)} |"
            for reason, names in sorted(by_reason.items())
        ),
    )


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`".replace("|", "\\|") for name in sorted(names))
