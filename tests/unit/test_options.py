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
    Upsert,
    Window,
    WithMessage,
)
from exactbatch.errors import ConfigurationError

OPTIONS: tuple[Any, ...] = (
    Pipeline(name="p", topics=("t",), value=Raw(), sink=Append("t")),
    Limits(max_records=1),
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


def test_old_names_of_options_are_taken_with_a_warning():
    by, measures = ("a", Window("at", "1 hour")), {"n": Count()}
    with pytest.warns(DeprecationWarning, match="is deprecated") as warned:
        old = Aggregate("t", by=by, measures=measures, final_after="2 hours", late="reject")  # type: ignore[call-arg]
    assert old == Aggregate(
        "t", group_by=by, aggregates=measures, allowed_lateness="2 hours", on_late="reject"
    )
    assert [str(warning.message) for warning in warned] == [
        "Aggregate(by=…) is deprecated. Write group_by=… instead.",
        "Aggregate(measures=…) is deprecated. Write aggregates=… instead.",
        "Aggregate(final_after=…) is deprecated. Write allowed_lateness=… instead.",
        "Aggregate(late=…) is deprecated. Write on_late=… instead.",
    ]
    assert {warning.filename for warning in warned} == {__file__}
    assert old.identity.key == ("a", "at_window = at by 1:00:00", "n = count(*)")
    with pytest.raises(ConfigurationError, match="by is the old name of group_by, and both are given"):
        Aggregate("t", group_by=by, by=by, aggregates=measures)  # type: ignore[call-arg]


def test_lists_may_stand_for_tuples_and_secrets_are_not_shown():
    assert Upsert("t", key=["id"]).key == ["id"]  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as found:
        Avro(registry="http://x", columns="id int", properties="s3cret")  # type: ignore[arg-type]
    assert "s3cret" not in str(found.value)
