"""What --json prints is JSON, whatever the values are."""

import json
import math
from datetime import UTC, datetime

import pytest

from exactbatch.cli.console import print_json


def printed(capsys, value, **options):
    print_json(value, **options)
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


@pytest.mark.parametrize("in_one_line", [False, True])
def test_numbers_that_json_lacks_are_strings(capsys, in_one_line):
    row = {"a": math.nan, "b": [math.inf, (-math.inf, 1.5)], "c": {"d": math.nan}, "e": None, "f": True}
    assert printed(capsys, {"rows": [row]}, in_one_line=in_one_line) == {
        "rows": [{"a": "NaN", "b": ["Infinity", ["-Infinity", 1.5]], "c": {"d": "NaN"}, "e": None, "f": True}]
    }
    assert printed(capsys, math.inf, in_one_line=in_one_line) == "Infinity"


def test_what_json_has_no_type_for_is_its_text(capsys):
    assert printed(capsys, {"at": datetime(2026, 1, 5, tzinfo=UTC)}) == {"at": "2026-01-05 00:00:00+00:00"}
