"""Calls of each of Spark's built-in functions, made from the examples of its documentation."""

import re
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as T

# The records that the calls are made over; {rows} of them, with nulls, ties and values of many types.
RECORDS: Final = """
    select cast(id as int) as id, if(id % 7 = 0, null, concat('n', id % 5)) as name, id * 37 % 11 as whole,
    cast(id % 4 as smallint) as small, cast(id * 37 % 11 as decimal(10,2)) / 4 as amount, id % 3 = 0 as flag,
    cast(id * 37 % 13 as double) / 8 as fraction, bitmap_construct_agg(id) as bits,
    timestamp '2026-01-01 00:00:00' + make_dt_interval(0, 0, id * 7 % 90, id) as at,
    array('a', concat('n', id)) as tags
    from range({rows}) group by id
"""

# What the examples do not show, or show with values that are one row each.
_OWN: Final = {
    "any": "any(flag)",
    "avg": "avg(small)",
    "bit_and": "bit_and(whole)",
    "bit_or": "bit_or(whole)",
    "bit_xor": "bit_xor(whole)",
    "bitmap_and_agg": "bitmap_and_agg(bits)",
    "bitmap_construct_agg": "bitmap_construct_agg(bitmap_bit_position(id))",
    "bitmap_or_agg": "bitmap_or_agg(bits)",
    "bool_and": "bool_and(flag)",
    "bool_or": "bool_or(flag)",
    "count": "count(name)",
    "count_if": "count_if(flag)",
    "every": "every(flag)",
    "listagg": "listagg(name, ',') within group (order by name)",
    "max": "max(name)",
    "mean": "mean(amount)",
    "median": "median(fraction)",
    "min": "min(at)",
    "percentile": "percentile(fraction, 0.3)",
    "percentile_cont": "percentile_cont(0.3) within group (order by fraction)",
    "percentile_disc": "percentile_disc(0.3) within group (order by fraction)",
    "regr_count": "regr_count(whole, small)",
    "some": "some(flag)",
    "string_agg": "string_agg(name, ',') within group (order by name)",
    "sum": "sum(amount)",
    "try_avg": "try_avg(amount)",
    "try_sum": "try_sum(small)",
    "rank": "rank() over (partition by small order by name)",
    "dense_rank": "dense_rank() over (partition by small order by name)",
    "percent_rank": "percent_rank() over (partition by small order by name)",
    "cume_dist": "cume_dist() over (partition by small order by name)",
    "window": "window(at, '20 seconds')",
    "window_time": "window_time(window)",
    "session_window": "session_window(at, '20 seconds')",
    "grouping": "grouping(small)",
    "grouping_id": "grouping_id(small)",
    "unix_timestamp": "unix_timestamp(cast(at as string))",
    "explode": "explode(tags)",
    "explode_outer": "explode_outer(tags)",
    "posexplode": "posexplode(tags)",
    "posexplode_outer": "posexplode_outer(tags)",
    "inline": "inline(array(named_struct('a', id), named_struct('a', id + 1)))",
    "inline_outer": "inline_outer(array(named_struct('a', id), named_struct('a', id + 1)))",
    "stack": "stack(2, id, name, 1, 'a')",
    "json_tuple": "json_tuple(to_json(struct(id, name)), 'id', 'name')",
    "variant_explode": "cast(v.value as string)",
    "variant_explode_outer": "cast(v.value as string)",
    "range": "v.id",
    **{
        type_: f"{type_}(cast(id as string))"
        for type_ in (
            "bigint",
            "binary",
            "decimal",
            "double",
            "float",
            "int",
            "smallint",
            "string",
            "tinyint",
        )
    },
    "boolean": "boolean(cast(flag as string))",
    "date": "date(cast(at as string))",
    "timestamp": "timestamp(id)",
    "time": "time(date_format(at, 'HH:mm:ss'))",
}
_FROM: Final = {
    "window_time": "(select *, window(at, '20 seconds') as window from {records})",
    "variant_explode": "{records}, lateral variant_explode(parse_json(to_json(tags))) as v",
    "variant_explode_outer": "{records}, lateral variant_explode_outer(parse_json(to_json(tags))) as v",
    "range": "{records} join range(10) as v on v.id < records.whole",
}
_GROUPED: Final = {
    "session_window": "session_window(at, '20 seconds')",
    "grouping": "cube (small)",
    "grouping_id": "cube (small)",
}
_GENERATORS: Final = {"json_tuple", "variant_explode", "variant_explode_outer", "range"}
_LITERAL: Final = re.compile(
    r"(?P<kept>\b(?:INTERVAL|AS|WITHIN GROUP)\b[^,()]*)|"
    r"(?:\b(?:DATE|TIMESTAMP_NTZ|TIMESTAMP_LTZ|TIMESTAMP|TIME|X)\s*)?(?:'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?<![\w.])\d+(?:\.\d+)?(?:[eE][+-]?\d+)?[A-Za-z]{0,2}\b",
    re.IGNORECASE,
)
_EXAMPLE: Final = re.compile(r">\s*(SELECT\b.*?);\s*$", re.IGNORECASE | re.DOTALL | re.MULTILINE)

Kind = Literal["row", "generator", "group", "window", "statement"]


@dataclass(frozen=True)
class Call:
    """A query over the view {records} that calls a function; `rendered` gives its result as text.

    row: one result for each id. generator: any number. group: one for each group. window: one for each id, of many
    records. statement: of no records at all.
    """

    name: str
    group: str
    kind: Kind
    expression: str
    query: str
    frame: DataFrame
    plainer: "Call | None" = None  # the same with constants alone, for a function that takes no null

    @property
    def rendered(self) -> str:
        """The result as text, which one can compare."""
        if self.kind == "generator":
            return self.expression
        match self.frame.schema["x"].dataType if "x" in self.frame.columns else None:
            case T.BinaryType():
                return f"hex({self.expression})"
            case None | T.GeometryType() | T.GeographyType():
                return f"hex(st_asbinary({self.expression}))"
        return f"cast({self.expression} as string)"


def builtin(spark: Any) -> list[Any]:
    """Return Spark's description of each of its functions, by name."""
    utils = spark._jvm.org.apache.spark.sql.api.python.PythonSQLUtils
    infos = {each.getName(): each for each in utils.listBuiltinFunctionInfos()}
    return [infos[name] for name in sorted(infos)]


def call(spark: Any, info: Any) -> Call | str:
    """A call of a function that Spark can analyze; what is in the way where there is none."""
    name, group = info.getName(), info.getGroup()
    said = "no example"
    calls: list[Call] = []
    for expression, statement in _candidates(info):
        kind = _kind(name, group, statement)
        query = statement or _query(name, kind, expression)
        if calls and kind == "statement":
            break
        try:
            frame = spark.sql(query.format(records="records") if statement is None else query)
        except (PySparkException, Py4JJavaError) as error:
            said = str(error).splitlines()[0]
            continue
        calls.append(Call(name, group, kind, expression, query, frame))
    made: Call | None = None
    for each in reversed(calls):
        made = replace(each, plainer=made)
    return made or said


def _kind(name: str, group: str, statement: str | None) -> Kind:
    if statement is not None:
        return "statement"
    if group == "agg_funcs" or name in _GROUPED:
        return "group"
    if group == "window_funcs":
        return "window"
    return "generator" if group == "generator_funcs" or name in _GENERATORS else "row"


def _query(name: str, kind: Kind, expression: str) -> str:
    table = _FROM.get(name, "{records}")
    if kind == "group":
        return f"select {expression} as x from {table} group by {_GROUPED.get(name, 'small')}"
    if kind == "generator":
        return f"select records.id, {expression} from {table}"
    return f"select id, {expression} as x from {table}"


def _candidates(info: Any) -> list[tuple[str, str | None]]:
    """Expressions over the records, or whole statements, the best first."""
    if (own := _OWN.get(info.getName())) is not None:
        return [(own, None)]
    expressions: list[tuple[str, str | None]] = []
    statements: list[tuple[str, str | None]] = []
    for example in _EXAMPLE.findall(info.getExamples().replace("_FUNC_", info.getName())):
        text = " ".join(example.split())
        selected = text[len("SELECT") :].strip()
        if not re.search(r"\bFROM\b(?!\s+'|\s+[A-Z_]+'|\s+\w+\))", selected, re.IGNORECASE):
            selected = re.sub(r"\s+AS\s+\w+$", "", selected, flags=re.IGNORECASE)
            expressions += [(each.replace("{", "{{").replace("}", "}}"), None) for each in _varied(selected)]
        statements.append((text, text))
    return [*expressions, *statements]


def _varied(expression: str) -> list[str]:
    """An expression with all, one or none of its literals made values of the record, which Spark cannot fold."""

    def varied(literal: re.Match[str]) -> str:
        return literal[0] if literal["kept"] else f"if(id % 4 = 0, null, {literal[0]})"

    return [_LITERAL.sub(varied, expression), _LITERAL.sub(varied, expression, count=1), expression]
