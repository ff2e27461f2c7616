"""Mutants match the source as text: each of them can be made, in exactly one place."""

import ast

import pytest

from mutants import MUTANTS, ROOT, broken


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_made(mutant):
    text = broken(mutant)
    if mutant.file.endswith(".py"):
        ast.parse(text)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_of_a_mutant_exist(mutant):
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert (
            f"def {name.partition('[')[0]}(" in (ROOT / file).read_text() if name else (ROOT / file).exists()
        )
