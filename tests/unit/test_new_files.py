"""The files that `exactbatch new` writes: source code that means what was proposed, in the right folders."""

import ast
import json
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactbatch import Append, Avro, Csv, Debezium, Json, Pipeline, Raw, Text, Upsert, WithKeyAndHeaders
from exactbatch.cli.project_files import project_at, write_new
from exactbatch.errors import ConfigurationError
from exactbatch.errors.printable import printable
from exactbatch.member_paths import Path as MemberPath
from exactbatch.sampling.key_and_sink import TopicFacts
from exactbatch.sampling.proposal import propose
from exactbatch.sampling.source_code import (
    Literal,
    record_code,
    string,
    write_dag_file,
    write_pipeline_module,
    write_pipeline_test,
)

RUFF = str(Path(sys.executable).parent / "ruff")


@given(st.one_of(st.text(), st.binary()))
def test_a_literal_is_the_text(text):
    assert ast.literal_eval(string(text)) == text


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(max_size=200),
        st.binary(max_size=60),
        st.dates(),
        st.datetimes(),
        st.datetimes(timezones=st.just(UTC)),
        st.times(),
        st.timedeltas(),
        st.uuids(),
        st.decimals(allow_nan=False),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = {
    "UTC": UTC,
    "Decimal": Decimal,
    "UUID": UUID,
    "date": date,
    "datetime": datetime,
    "time": time,
    "timedelta": timedelta,
}


@given(VALUES, st.integers(0, 40))
def test_a_literal_of_several_lines_is_the_value(value, before):
    assert eval(f"({Literal(value).text(indent=4, before=before)})", dict(NAMES)) == value


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), [0.5, float("inf")]])
def test_a_literal_of_infinity_is_infinity(value):
    assert eval(Literal(value).text(indent=4, before=0)) == value


@given(
    st.dictionaries(
        st.text(max_size=12),
        st.one_of(st.text(max_size=60), st.integers(), st.lists(st.text(max_size=9))),
        max_size=9,
    ),
    st.booleans(),
)
def test_the_code_of_a_record_is_its_value(document, with_key):
    value = json.dumps(document, ensure_ascii=False).encode()
    code = record_code(value, b"k", with_key=with_key, may_wrap=True)
    found = eval(code, {"Record": lambda value, key: value})
    assert json.loads(found) == document


def test_a_member_that_is_kept_as_it_is_written_has_no_line_break():
    items = json.dumps([{"sku": "a" * 30, "quantity": 1}, {"sku": "b", "quantity": 2}])
    code = record_code(
        f'{{"id": "{"x" * 70}", "items": {items}}}'.encode(), None, with_key=False, may_wrap=True
    )
    assert code.startswith('"""')
    assert items in code


@given(st.one_of(st.none(), st.binary(max_size=300)), st.one_of(st.none(), st.binary(max_size=300)))
def test_the_code_of_a_record_that_is_not_json_is_exact(value, key):
    code = record_code(value, key, with_key=True, may_wrap=False)
    found = eval(code, {"Record": lambda value, key: (value, key)})
    assert [each.encode() if isinstance(each, str) else each for each in found] == [value, key]


LONG = ", ".join(f"column_{number} bigint" for number in range(9))
PIPELINES = [
    Pipeline(name="a", topics="t", value=Json("id int"), sink=Append("public.a")),
    Pipeline(
        name="a",
        topics=("a-topic-with-a-long-name.in.several.parts", "another-topic-with-a-long-name.in.parts"),
        value=Json(
            "\n    at timestamptz,\n    b text from 'x.\"y z\"'\n", epoch={"at": "ms"}, encoding="gzip"
        ),
        message_key=Csv("at timestamptz"),
        sink=Upsert("public.a", key="at"),
    ),
    Pipeline(name="a", topics="t", value=Csv(LONG, delimiter="\t", null="\\N"), sink=Append("public.a")),
    Pipeline(
        name="a",
        topics="t",
        value=Debezium("id int, body text", version="mysql", epoch={}, decimals="string", truncate="apply"),
        sink=Upsert("public.a", key="id", version=("file", "pos")),
    ),
    Pipeline(
        name="a",
        topics="t",
        value=Avro(registry="http://localhost:8081", fields='id bigint, "Name" text'),
        sink=Append("public.a"),
    ),
    Pipeline(
        name="a",
        topics="t",
        value=WithKeyAndHeaders(Json("id int"), key=Text("key")),
        message_key=Text("key"),
        sink=Upsert("public.a", key="key"),
    ),
    Pipeline(name="a", topics="t", value=Raw("bytes"), sink=Append("public.a")),
    Pipeline(name="a", topics="t", value=Debezium('\n"a\\b" int,\nid int\n'), sink=Append("public.a")),
]


@given(st.text(), st.text(alphabet="\"'\\\n{}x", max_size=20))
def test_no_text_of_a_record_becomes_code(description, text):
    """As a docstring: that of a change event has the connector's name. As the name of a member, in several lines."""
    schema = "\n    a int,\n    b int from '{}'\n".format(
        str(MemberPath(((text or "c",),))).replace("'", "''")
    )
    pipeline = Pipeline(name="a", topics=("t",), value=Json("a int"), sink=Append("public.a"))
    object.__setattr__(pipeline.value, "schema", schema)  # also one that Json refuses
    tree = ast.parse(write_pipeline_module(pipeline, f"The topic t: {description}."))
    assert [type(each).__name__ for each in tree.body] == ["Expr", "ImportFrom", "Assign"]
    assert ast.get_docstring(tree, clean=False) == printable(f"The topic t: {description}.")
    (written,) = tree.body[2].value.keywords[2].value.args
    assert ast.literal_eval(written).split() == schema.split()


def test_the_name_of_a_connector_is_no_code():
    evil = '\ud800x"""\nraise SystemExit("a record was run as code")\n"""'
    change = {"op": "c", "before": None, "after": {"id": 1}, "source": {"connector": evil}}
    values = pa.array([json.dumps(change).encode()] * 3, pa.binary())
    facts = TopicFacts(pa.nulls(3, pa.binary()), values, partitions=[0] * 3, is_compacted=False)
    proposal = propose("a", "t", "public.a", facts)
    assert evil in proposal.label
    names = {}
    module = write_pipeline_module(proposal.pipeline, f"The topic t: {proposal.label}.")
    exec(module.encode(), names)
    assert names["a"].name == "a"


@pytest.mark.parametrize("pipeline", PIPELINES, ids=range(len(PIPELINES)))
@pytest.mark.parametrize("width", ["88", "110"])
def test_the_module_defines_the_pipeline_and_is_formatted(pipeline, width):
    module = write_pipeline_module(pipeline, "A topic.")
    names = {}
    exec(module, names)
    assert repr(names["a"]).replace("\\n", "").replace(" ", "") == repr(pipeline).replace("\\n", "").replace(
        " ", ""
    )
    dag = write_dag_file(pipeline, "@hourly", separate=True)
    test = write_pipeline_test(
        pipeline,
        [(b"{}", None, []), (None, b"k" * 200, [("__value_schema_id", b"\1" * 17)])],
        [{"x": "y" * 300}],
        separate=True,
    )
    for text in (module, dag, test):
        done = subprocess.run(
            [RUFF, "format", "--isolated", "--diff", "--line-length", width, "-"],
            input=text,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (0, "")


def test_the_folders_are_those_of_the_project(tmp_path):
    repository, own, elsewhere = tmp_path / "repository", tmp_path / "own", tmp_path / "elsewhere"
    for folder in (repository / "jobs" / "pipelines", own / "pipelines", own / "dags", elsewhere):
        folder.mkdir(parents=True)
    for folder, importable, module in (
        (repository, repository / "jobs", repository / "jobs" / "pipelines"),
        (repository, None, repository / "jobs" / "pipelines"),
        (own / "dags", own, own / "pipelines"),
        (elsewhere, own, elsewhere / "pipelines"),
        (elsewhere, None, elsewhere / "pipelines"),
    ):
        assert project_at(folder, importable).find_files("x")[0] == module / "x.py"
    assert project_at(own / "dags", own).find_files("x") == (
        own / "pipelines" / "x.py",
        own / "dags" / "x.py",
        own / "tests" / "pipelines" / "test_x.py",
    )


def test_nothing_is_overwritten_and_a_dangling_link_is_a_file(tmp_path):
    (tmp_path / "b").symlink_to(tmp_path / "nowhere")
    with pytest.raises(
        ConfigurationError, match="b: the file exists, and is not overwritten. Nothing was written"
    ):
        write_new({tmp_path / "a": "new", tmp_path / "b": "new"})
    assert not (tmp_path / "a").exists()
    write_new({tmp_path / "x" / "a": "new"})
    assert (tmp_path / "x" / "a").read_text() == "new"
