"""Imports stand at the top of a file. The few in functions have a comment with the reason."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from support.environment import ROOT

FILES: Final = sorted(file for folder in ("jobs", "plugins") for file in (ROOT / folder).rglob("*.py"))
IN_FUNCTIONS: Final = 60
UNDER_TYPE_CHECKING: Final = 20


def imports_within(node: ast.AST) -> Iterator[ast.stmt]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom))


def in_functions(file: Path) -> dict[int, ast.stmt]:
    """The imports in the functions of a file, by their lines."""
    functions = (
        each
        for each in ast.walk(ast.parse(file.read_text()))
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {found.lineno: found for function in functions for found in imports_within(function)}


def has_reason(file: Path, line: int) -> bool:
    """True if an import has a comment, or one stands above the imports of which it is one."""
    lines = file.read_text().splitlines()
    covered = {
        each
        for found in in_functions(file).values()
        for each in range(found.lineno, (found.end_lineno or 0) + 1)
    }
    while line in covered or not lines[line - 1].strip():
        if "  # " in lines[line - 1]:
            return True
        line -= 1
    return lines[line - 1].strip().startswith("#")


def test_few_imports_are_in_functions():
    found = [f"{file.relative_to(ROOT)}:{line}" for file in FILES for line in in_functions(file)]
    assert len(found) <= IN_FUNCTIONS, found


def test_an_import_in_a_function_has_a_reason():
    lacking = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in FILES
        for line in in_functions(file)
        if not has_reason(file, line)
    ]
    assert lacking == []


def test_few_imports_are_only_for_the_types():
    found = [
        f"{file.relative_to(ROOT)}:{each.lineno}"
        for file in FILES
        for block in ast.walk(ast.parse(file.read_text()))
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for each in imports_within(block)
    ]
    assert len(found) <= UNDER_TYPE_CHECKING, found
