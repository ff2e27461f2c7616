"""No statement's text is put together from values: identifiers and literals go through psycopg2.sql."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).parents[2] / "jobs" / "exactbatch"
# What sql.SQL() takes beside constants: names of types, as columns.py checks and Postgres spells them, digits
# of such a type, the text that Postgres itself keeps of a constraint or an index, a number of a column, the text of
# ledger/queries, the search path, whose schemas Postgres has quoted, what the class or function has itself chosen from
# constants, and the checks of a pipeline, which are SQL of its author.
TAKEN: Final = {
    "audit/log_records.py": {"check", "column.type"},
    "sinks/values/checks.py": {"cast.type", "each.type", "check"},
    "audit/values.py": {"self._types[name]", "decimal"},
    "audit/latest_comparison.py": {"tables.types[name]", "type_"},
    "sinks/aggregate/watermark.py": {"columns"},
    "sinks/tables/constraints.py": {
        "constraint.expression",
        "constraint.referenced",
        "each",
        "expression",
        "f' collate {collation}' if collation else ''",
        "operator",
        "row.predicate",
    },
    "sinks/upsert/moving_values.py": {
        "column.type",
        "expression",
        "f' collate {column.collation}' if column.collation else ''",
        "operator",
    },
    "sinks/aggregate/audit.py": {"column.type", "types[name]", "str(number)"},
    "sinks/aggregate/function_sql.py": {"function.function", "type_"},
    "sinks/values/cast.py": {"self.type"},
    "sinks/tables/check_stored_rows.py": {"cast.type"},
    "sinks/values/exact_values.py": {"target.sql_name"},
    "sinks/values/kept_values.py": {"target.sql_name", "kept.sql_name"},
    "sinks/values/audited_casts.py": {
        "condition",
        "kept",
        "target",
        "re.sub('^character(?! varying)', 'bpchar', into)",
    },
    "sinks/upsert/latest_rows.py": {"cast.type", "type_"},
    "sinks/aggregate/merged_groups.py": {"cast.type"},
    "sinks/aggregate/partial_results.py": {"column.type", "type_"},
    "sinks/tables/target_definition.py": {"column.type", "partition_by"},
    "sinks/by_batch/merge.py": {"key.definition"},
    "sinks/by_batch/staged_partition.py": {
        "index.constraint",
        "index.definition.removeprefix(index.prefix)",
    },
    "sinks/upsert/audit.py": {"type_"},
    "postgres/connection.py": {"path"},
    "postgres/types.py": {"type_.sql_name"},
    "batch/staging/staging_tables.py": {"type_"},
    "operations/try_records.py": {"column.staged_type"},
    "testing/in_postgres.py": {"column.staged_type"},
    "ledger/staging.py": {"_QUERIES.staged_records.sql"},
    "ledger/rejects.py": {"_QUERIES.insert_rejects.sql"},
}


def built(tree: ast.AST) -> Iterator[str]:
    """What execute() and sql.SQL() are given that is put together, or is no constant."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
            continue
        text = call.args[0]
        if call.func.attr in ("execute", "executemany", "mogrify", "copy_expert"):
            if any(map(is_built, ast.walk(text))):
                yield ast.unparse(text)
        elif call.func.attr == "SQL" and not is_constant(text):
            yield ast.unparse(text)


def is_built(node: ast.AST) -> bool:
    """An f-string with more than module constants, text % values, text + text, or "…".format()."""
    match node:
        case ast.FormattedValue(value=ast.Name(id=name)):
            return not name.isupper()
        case ast.FormattedValue():
            return True
        case ast.BinOp(op=ast.Mod() | ast.Add(), left=left, right=right):
            return is_text(left) or is_text(right)
        case ast.Call(func=ast.Attribute(attr="format", value=value)):
            return isinstance(value, ast.Constant | ast.JoinedStr)
    return False


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_constant(node: ast.AST) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name.isupper()
        case ast.IfExp(body=body, orelse=orelse):
            return is_constant(body) and is_constant(orelse)
    return False


def test_no_statement_is_put_together_as_text():
    found = {
        str(path.relative_to(PACKAGE)): texts
        for path in sorted(PACKAGE.rglob("*.py"))
        if (texts := set(built(ast.parse(path.read_text()))))
    }
    unknown = {file: texts - TAKEN.get(file, set()) for file, texts in found.items()}
    assert {file: texts for file, texts in unknown.items() if texts} == {}


@pytest.mark.parametrize(
    "statement",
    [
        "cursor.execute(f'drop table {table}')",
        "cursor.execute(f'drop table {self.TABLE}')",
        "cursor.execute('drop table %s' % table)",
        "cursor.execute('drop table ' + table)",
        "cursor.execute('drop table {}'.format(table))",
        "cursor.execute(sql.SQL(f'drop table {table}'))",
        "cursor.execute(sql.SQL(table))",
        "sql.SQL('select {}' if x else text)",
    ],
)
def test_what_is_looked_for_is_found(statement):
    assert list(built(ast.parse(statement)))


@pytest.mark.parametrize(
    "statement",
    [
        "cursor.execute('select %s', (value,))",
        "cursor.execute(f'drop table {_TABLE}')",
        "cursor.execute(sql.SQL('drop table {}').format(sql.Identifier(table)))",
        "sql.SQL('sum(records)' if aggregate else 'count(*)')",
    ],
)
def test_what_is_no_text_of_a_value_is_left_alone(statement):
    assert not list(built(ast.parse(statement)))
