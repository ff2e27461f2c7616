"""Whatever type an option has, a wrong one is a ConfigurationError that names the option."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from typing import Any, get_args, get_origin

import pytest

import exactbatch
from exactbatch import (
    Aggregate,
    Append,
    Avro,
    Count,
    Csv,
    Custom,
    Debezium,
    Flattened,
    Json,
    Limits,
    Max,
    Pipeline,
    Raw,
    Sum,
    Tables,
    Text,
    ToTopic,
    Tuning,
    Upsert,
    Window,
    WithKeyAndHeaders,
)
from exactbatch.airflow import Connections
from exactbatch.errors import ConfigurationError


def pipeline(**options: Any) -> Pipeline:
    return Pipeline(name="p", topics="t", value=Raw(), sink=Append("t"), **options)


OPTIONS: tuple[Any, ...] = (
    Pipeline(name="p", topics=("t",), value=Raw(), sink=Append("t")),
    Limits(max_offsets=1),
    Tuning(),
    ToTopic("t"),
    Append("t"),
    Upsert("t", key=("id",)),
    Aggregate("t", ("a", Window("at", timedelta(hours=1))), {"n": Count(), "m": Max("b")}),
    Window("at", "1 hour"),
    Count("a"),
    Sum("a"),
    Max("a"),
    Raw(),
    Text(),
    Json("id int"),
    Csv("id int"),
    Debezium("id int"),
    Flattened("id int"),
    Avro('{"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]}'),
    Custom(lambda batch: (batch, {}), "id int"),
    WithKeyAndHeaders(Raw(), headers={"h": Text("h")}),
)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda each: type(each).__name__)
def test_a_value_of_another_type_is_refused(options):
    for field in fields(options):
        if not field.init or field.type is Any:
            continue
        message = f"{type(options).__name__}: expected {field.name} to be "
        for wrong in (object(), 1.5j, *([] if field.type in (bool, "bool") else [True])):
            with pytest.raises(ConfigurationError, match=message):
                replace(options, **{field.name: wrong})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Aggregate("t", ("a",), measures={}), "Aggregate has no option 'measures'. Write aggregates"),
        (lambda: Limits(max_records=1), "Limits has no option 'max_records'. Write max_offsets instead"),
        (lambda: Append("t", smallest_partition=1), "no option 'smallest_partition'. Write min_offsets"),
        (lambda: Avro("s", columns="id int"), "Avro has no option 'columns'. Write fields instead"),
        (lambda: WithKeyAndHeaders(Raw(), header={}), "no option 'header'. Write headers instead"),
        (lambda: Connections(spark_history="http://h"), "no option 'spark_history'. Write spark_history_url"),
        (lambda: ToTopic("t", key=("id",)), "ToTopic has no option 'key'. Write keyed_by instead"),
        (lambda: Append("t", target="u", lineag="record"), "no option 'lineag'. Write lineage instead"),
        (lambda: ToTopic("t", xyz=1), "no option 'xyz'. It has topic, keyed_by, value, key_format, numbers,"),
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_the_one_that_is_meant(make, said):
    with pytest.raises(ConfigurationError, match=said):
        make()


ONE_OR_SEVERAL = (
    (lambda value: Pipeline(name="p", topics=value, value=Raw(), sink=Append("t")).topic_names, "orders"),
    (lambda value: Tables(name="p", topics=value, pipeline=lambda _: None).topic_names, "orders"),
    (lambda value: pipeline(checks=value).row_checks, "value is not null"),
    (lambda value: Append("t", cascade=value).cascaded_tables, "public.note"),
    (lambda value: Upsert("t", key=value).key_columns, "id"),
    (lambda value: Upsert("t", key=value).identity.key, "id"),
    (lambda value: Upsert("t", key="id", version=value).version_columns, "updated_at"),
    (lambda value: Aggregate("t", value, {"n": Count()}).groups, "carrier"),
    (lambda value: Aggregate("t", value, {"n": Count()}).groups, Window("at", "1 hour")),
    (lambda value: ToTopic("t", keyed_by=value).key_columns(()), "carrier"),
    (lambda value: ToTopic("t", value=value).value_columns, "carrier"),
    (lambda value: Json("id int", encoding=value).encodings, "gzip"),
    (lambda value: tuple(Debezium("id int", source=value).source_columns), "table"),
)


@pytest.mark.parametrize(("find", "value"), ONE_OR_SEVERAL)
def test_one_value_may_stand_for_a_tuple_and_is_never_taken_for_its_letters(find, value):
    assert find(value) == find((value,)) == find([value]) == (value,)


def test_every_option_that_takes_several_values_takes_one():
    """The fields of all public classes: a new one belongs into ONE_OR_SEVERAL."""
    public = [getattr(exactbatch, name) for name in exactbatch.__all__]
    found = {
        f"{each.__name__}.{field.name}"
        for each in public
        if is_dataclass(each)
        for field in fields(each)
        if field.init
        and {tuple, Sequence} & {get_origin(part) for part in (field.type, *get_args(field.type))}
    }
    assert found == {
        "Aggregate.group_by",
        "Append.cascade",
        "Debezium.source",
        "Json.encoding",
        "Pipeline.allow_nondeterministic",  # tests/integration/test_transform.py, with Spark
        "Pipeline.checks",
        "Pipeline.sink",  # one sink, or several
        "Pipeline.topics",
        "Tables.topics",
        "ToTopic.keyed_by",
        "ToTopic.value",
        "Upsert.key",
        "Upsert.version",
    }


def test_lists_may_stand_for_tuples_and_secrets_are_not_shown():
    assert Upsert("t", key=["id"]).key == ["id"]  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as found:
        Avro(registry="http://x", fields="id int", properties="s3cret")  # type: ignore[arg-type]
    assert "s3cret" not in str(found.value)
