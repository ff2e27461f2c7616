"""Which columns a check sees, and which pipelines may have one."""

import pytest

from exactbatch import Append
from exactbatch.columns import parse_columns
from exactbatch.errors import ConfigurationError
from exactbatch.sinks.values.checks import find_columns
from support.pipelines import flights_pipeline

COLUMNS = parse_columns('amount int, id int, "Amount" int, note text, "a b" int')


@pytest.mark.parametrize(
    ("check", "names"),
    [
        ("amount >= 0", ["amount"]),
        ("AMOUNT >= 0", ["amount"]),
        ('"Amount" >= 0', ["Amount"]),
        ("note <> 'amount'", ["note"]),
        ("amounts > 0", []),
        ('"a b" > id', ["id", "a b"]),
        ("note ~ '^[a-z]+$' or note = 'it''s id'", ["note"]),
    ],
)
def test_a_reason_shows_the_columns_that_the_check_names(check, names):
    assert [column.name for column in find_columns(check, COLUMNS)] == names


def test_checks_are_expressions_that_are_not_empty():
    with pytest.raises(ConfigurationError, match="checks that are not empty"):
        flights_pipeline(checks=(" ",))


def test_ranges_that_are_copied_into_the_target_have_no_checks():
    with pytest.raises(ConfigurationError, match="found checks, which Postgres evaluates before"):
        flights_pipeline(checks=("year > 0",), commit="partition", sink=Append("public.flight"))
