"""Whatever type an option has, a wrong one is a ConfigurationError that names the option."""

from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

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
    Text,
    ToTopic,
    Tuning,
    Upsert,
    Window,
    WithMessage,
)
from exactbatch.errors import ConfigurationError

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
    WithMessage(Raw(), header={"h": Text("h")}),
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
        (lambda: ToTopic("t", key=("id",)), "ToTopic has no option 'key'. Write keyed_by instead"),
        (lambda: Append("t", target="u", lineag="record"), "no option 'lineag'. Write lineage instead"),
        (lambda: ToTopic("t", xyz=1), "no option 'xyz'. It has topic, keyed_by, value, key_format, numbers,"),
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_the_one_that_is_meant(make, said):
    with pytest.raises(ConfigurationError, match=said):
        make()


def test_lists_may_stand_for_tuples_and_secrets_are_not_shown():
    assert Upsert("t", key=["id"]).key == ["id"]  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as found:
        Avro(registry="http://x", fields="id int", properties="s3cret")  # type: ignore[arg-type]
    assert "s3cret" not in str(found.value)
