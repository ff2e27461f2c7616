"""Whatever Postgres answers to a statement, the error is one of ours, says what happened, and nothing is lost.

A proxy answers one statement at a time with an SQLSTATE. Batches run in this process, without Spark, on the
connections that the driver and its executors have.

What is raised depends on the code only by its meaning, of which tests/unit/test_sqlstates.py looks at all. So
the short form gives some statements one code each; the long form gives each statement as many of all codes in turn as
EXACTBATCH_ANSWERS says, by itself 4, and 300 are all.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import psycopg2
import psycopg2.errorcodes
import pytest

from exactbatch.audit.run_audit import audit
from exactbatch.errors import ExactbatchError, TargetMismatch
from exactbatch.errors.sqlstates import LOST, NO_SQLSTATE, is_refusal, meaning
from exactbatch.operations.compact import compact_changes
from exactbatch.operations.report import load_report
from exactbatch.operations.status import load_status
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import freeze_replay, preview_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from support.environment import LONG
from support.faults.answered_batches import (
    AnsweredBatches,
    outcome,
    process,
    process_replay,
)
from support.faults.answers import SAID, Asked

pytestmark = pytest.mark.slow

CODES: Final = sorted(
    code
    for name, code in vars(psycopg2.errorcodes).items()
    if name.isupper() and isinstance(code, str) and len(code) == 5 and code != "00000"
)
# One of each meaning, and those that the program itself looks for.
SOME: Final = [
    "08006", "0A000", "22003", "22P02", "23503", "23505", "25006", "25P02", "25P03", "28000", "3D000", "3F000",
    "40001", "40P01", "42501", "42703", "42P01", "42P07", "44000", "53100", "53300", "54000", "55000", "55P03",
    "57014", "57P01", "57P03", "57P04", "58030", "72000", "F0000", "HV000", "HV00N", "P0001", "XX000", "02000",
]  # fmt: skip
# What fails without an error of the batch: it has committed, or has failed already.
WITHOUT_ERROR: Final = (
    "drop table if exists",
    "lock_timeout",
    "rollback",
    "savepoint offenders",
    "begin",
    "commit",
)


def plan_advance(case: AnsweredBatches) -> Any:
    return lambda: case.through(lambda c: freeze_advance(c, case.log, case.pipeline, origin="cli"))


def plan_replay(case: AnsweredBatches) -> Any:
    request = ReplayRequest(ranges=(RequestedRange(case.topic.name, 0, 0, 4),))

    def run(connection: Any) -> None:
        preview_replay(connection, case.log, case.pipeline, request)
        freeze_replay(connection, case.log, case.pipeline, request, origin="cli")

    return lambda: case.through(run)


def look(case: AnsweredBatches) -> Any:
    def run(connection: Any) -> None:
        load_status(connection, case.log, case.pipeline)
        load_report(case.settings.postgres, case.log, case.pipeline, 1)

    return lambda: case.through(run)


def compacting(case: AnsweredBatches) -> Any:
    return lambda: case.through(lambda c: compact_changes(c, case.log, case.pipeline, before=None))


def auditing(case: AnsweredBatches) -> Any:
    return lambda: audit(case.pipeline, case.settings, values=True)


FLOWS: Final[list[tuple[str, Callable[[AnsweredBatches], Any]]]] = [
    ("append", process),
    ("append", process_replay),
    ("append", plan_advance),
    ("append", plan_replay),
    ("append", look),
    ("append", auditing),
    ("partition", process),
    ("upsert", process),
    ("upsert", process_replay),
    ("upsert", compacting),
    ("upsert", auditing),
    ("aggregate", process),
    ("aggregate", process_replay),
    ("aggregate", auditing),
]


# Of these, the short form has some, with so many of their statements.
IN_SHORT: Final = (0, 5, 6, 8, 11)
_SHORT: Final = 10


def check(code: str, error: ExactbatchError, asked: Asked) -> None:
    """The error is what the table says of the code, in words of our own."""
    message = f"{type(error).__name__}: {error}"
    what = f"{code} at {asked}: {message}"
    own_words = type(error).__name__ in ("NotRegistered", "StagedRowsDiffer", "TargetMismatch")
    assert SAID in message or f"SQLSTATE {code}" in message or own_words, what
    assert "psycopg2" not in message, what
    assert "adbc" not in re.sub("t[0-9a-f]{12}", "", message.lower()), what  # names of topics are random
    assert "error in exactbatch" not in message, what
    lost = meaning(code) is LOST
    if NO_SQLSTATE.what in message:
        assert error.retryable, what  # ADBC has told no SQLSTATE
    elif type(error).__name__ == "StagedRowsDiffer":
        assert code == "42P01", what
    else:
        assert error.retryable == meaning(code).error.retryable, what
        assert (LOST.what in message) == lost, what
        assert meaning(code).what in message or own_words, what
    if isinstance(error, TargetMismatch):
        assert is_refusal(code), what


def chosen(statements: Sequence[Asked], shift: int) -> Iterator[tuple[int, list[str]]]:
    """The statements that are answered, by number, and the codes that each is answered with."""
    each = min(int(os.environ.get("EXACTBATCH_ANSWERS", "4")), len(CODES))
    for number in range(len(statements)):
        if LONG:
            yield number, [CODES[((shift + number) * each + at) % len(CODES)] for at in range(each)]
        elif number % max(1, len(statements) // _SHORT) == 0:
            yield number, [SOME[(shift + number) % len(SOME)]]


def ends_launch(statements, number):
    """True for the second listing of staging tables: a launch drops its own by name if it cannot list them."""
    text = statements[number].text
    return "'exactbatch_staging'" in text and text in [each.text for each in statements[:number]]


@pytest.mark.parametrize(
    ("case", "flow"),
    FLOWS if LONG else [FLOWS[at] for at in IN_SHORT],
    indirect=["case"],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
@pytest.mark.timeout(36_000 if LONG else 600)
def test_every_answer_to_every_statement_is_an_error_of_ours(case, flow):
    work = flow(case)
    case.answers.refuse(None)
    work()
    statements = list(case.answers.asked)
    assert len(statements) >= 8
    combinations = failed = 0
    shift = 17 * [each for _, each in FLOWS].index(flow)
    for number, codes in chosen(statements, shift):
        for code in codes:
            work = flow(case)
            before = case.seen()
            case.answers.refuse(number, code)
            error = outcome(work)
            asked = case.answers.refused
            case.answers.refuse(None)
            assert asked is not None, f"statement {number} of {len(statements)} did not come"
            combinations += 1
            if error is None:
                has_none = any(each in asked.text.lower() for each in WITHOUT_ERROR)
                assert has_none or ends_launch(statements, number), f"{code}: {asked}"
                continue
            failed += 1
            check(code, error, asked)
            if case.seen() != before:
                # Committed, and whole: what failed came after it.
                assert flow in (process, process_replay, plan_advance, plan_replay, compacting), asked
                if flow in (process, process_replay) and case.pipeline.commit == "batch":
                    assert case.status(case.batch_id) == "committed", asked
        assert outcome(flow(case)) is None, f"the retry after {statements[number]}"
    case.assert_exact()
    print(f"{combinations} combinations, {failed} errors")  # noqa: T201 - is shown with -s
