"""Every statement of the ledger is called, by its name and with its parameters."""

import ast
import re
from pathlib import Path

import pytest

from exactbatch import ledger
from exactbatch.ledger.statements import load_queries

MODULES = {
    match[1]: path
    for path in sorted(Path(ledger.__file__).parent.glob("*.py"))
    if (match := re.search(r'_QUERIES: Final = load_queries\("(\w+)"\)', path.read_text(encoding="utf-8")))
}


def calls(tree):
    """The calls of statements in a module: the name, the keywords that are given, and whether there are others."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="_QUERIES"), attr=name), keywords=keywords):
                given = {keyword.arg for keyword in keywords}
                yield name, given - {None}, None in given


def test_every_file_of_statements_belongs_to_a_module():
    files = {path.stem for path in (Path(ledger.__file__).parent / "queries").glob("*.sql")}
    assert files == set(MODULES)


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"range_commits"}))
def test_module_uses_all_of_its_statements_with_all_of_their_parameters(name):
    queries, tree = load_queries(name), ast.parse(MODULES[name].read_text(encoding="utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "_QUERIES"
    }
    assert used == {query for query in queries.available_queries if not query.endswith("_cursor")}
    for query, given, has_others in calls(tree):
        parameters = set(re.findall(r"%\((\w+)\)s", getattr(queries, query).sql))
        assert given <= parameters if has_others else given == parameters, query
