"""Whatever a format gives and whatever a column is: the stored value is the record's, or there is none."""

from pathlib import Path
from typing import Any

import pytest
from test_batch import world
from value_matrix import (
    AS_TEXT,
    AS_TEXT_ARRAYS,
    KINDS,
    SOURCES,
    Kind,
    Matrix,
    Result,
    Source,
    rendered,
    summary,
)

from exactbatch import Append, Upsert

__all__ = ["world"]

DOC = Path(__file__).parents[2] / "docs" / "value-matrix.md"
CORE = {"text", "text[]", "bigint", "double precision", "numeric(10,2)", "timestamp with time zone"}
# Of arrays in the core: kinds that are no arrays refuse them all for one reason.
SCALARS_FOR_ARRAYS = {"integer", "text", "jsonb"}
# Of these, equal values may differ, as -0 and 0; a group has one of them. Others have no order or no `=`.
UNGROUPED = ("json", "public.item", "public.citext", "interval", "real", "double precision", "public.tags")


@pytest.fixture
def matrix(connection: Any, database: str) -> Matrix:
    return Matrix(connection, database)


def in_core(source: Source, kind: Kind) -> bool:
    if source.written not in CORE:
        return False
    if source.column.element is not None:
        return kind.is_array or kind.declared in SCALARS_FOR_ARRAYS
    return source.written == "text" or (not kind.is_array and not kind.declared.startswith("reg"))


def wrong(results: dict[tuple[str, str], Result]) -> list[str]:
    return [
        f"{source} → {kind}: {what}" for (source, kind), result in results.items() for what in result.wrong
    ]


def test_the_core_of_the_matrix_is_exact_rejected_or_refused(matrix: Matrix) -> None:
    results = {
        (source.written, kind.title): matrix.append(source, kind)
        for source in SOURCES
        for kind in KINDS
        if in_core(source, kind)
    }
    assert wrong(results) == [], summary(list(results.values()))
    written = DOC.read_text()
    for (source, kind), result in results.items():
        if source == "text":
            assert f"| {kind} | {result.word} |" in written, (
                f"{kind}: {result.word}; write docs/value-matrix.md"
            )


@pytest.mark.long
def test_the_whole_matrix_of_an_append_is_exact_and_the_page_shows_it(matrix: Matrix) -> None:
    results = {
        (source.written, kind.title): matrix.append(source, kind) for source in SOURCES for kind in KINDS
    }
    assert wrong(results) == [], summary(list(results.values()))
    assert rendered(results) == DOC.read_text()


@pytest.mark.long
def test_the_whole_matrix_of_an_upsert_is_exact(matrix: Matrix) -> None:
    results = {
        (source.written, kind.title): matrix.upsert(source, kind)
        for source in (*SOURCES, *AS_TEXT, *AS_TEXT_ARRAYS)
        for kind in KINDS
    }
    assert wrong(results) == [], summary(list(results.values()))


@pytest.mark.long
def test_every_type_of_a_pipeline_fits_the_tables_that_its_sink_makes(matrix: Matrix) -> None:
    results = {}
    for source in (*SOURCES, *AS_TEXT, *AS_TEXT_ARRAYS):
        kind = matrix.kind_of(source)
        results[source.written, "append"] = matrix.own(source, kind, Append("public.t"))
        if source.written != "json":
            results[source.written, "upsert"] = matrix.own(source, kind, Upsert("public.t", key=("id",)))
        if not source.written.startswith(UNGROUPED):
            results[source.written, "aggregate"] = matrix.aggregate(source, kind)
    assert wrong(results) == [], summary(list(results.values()))
