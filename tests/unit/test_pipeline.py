"""Writing and loading a pipeline: what cannot work is refused, and the message says why."""

import importlib
import sys
from datetime import timedelta

import pytest

from exactbatch import Append, Json, Pipeline, Raw, Tables, ToTopic, Tuning, Upsert
from exactbatch.discovery import load_pipeline
from exactbatch.errors import ConfigurationError
from exactbatch.operations.doctor.registrations import find_pipelines
from exactbatch.sinks.tables.target import TargetTable
from support.pipelines import flights_pipeline


def test_pipeline_starts_at_earliest_offset_and_refuses_losses_and_rejects():
    assert (flights_pipeline().start, flights_pipeline().on_loss, flights_pipeline().max_rejects) == (
        "earliest",
        "fail",
        0,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "expected a pipeline name of 1 to 200 letters, digits, '.', '_' and '-', found ''"),
        ({"name": "flüge"}, "found 'flüge'"),
        ({"name": "a b"}, "found 'a b'"),
        ({"name": "a" * 201}, "expected a pipeline name of 1 to 200 letters"),
        ({"topics": ()}, r"expected one or more topics, .*found \(\)"),
        (
            {"start": "newest"},
            "expected start to be 'earliest', 'latest', 'group:NAME', a time .* or .*found 'newest'",
        ),
        ({"start": "group:"}, "found 'group:'"),
        ({"start": "2026-11-31"}, "a time such as '2026-11-21T08:00:00Z', or .*, found '2026-11-31'"),
        ({"start": {"flihgts": {0: 5}}}, "to name topics of the pipeline, flights, found 'flihgts'"),
        ({"start": {"flights": 5}}, "expected start to be str or {str: {int: int}}, found {'flights': 5}"),
        ({"start": {"flights": {"0": 5}}}, "expected start to be str or {str: {int: int}}, found"),
        ({"start": {"flights": {0: -5}}}, "partitions and offsets must be 0 or more"),
        (
            {"max_rejects": "0.1"},
            r"expected max_rejects to be int, found '0.1' \(str\)",
        ),
        ({"max_rejects": True}, r"expected max_rejects to be int, found True \(bool\)"),
        ({"max_rejects": 0.5}, r"expected max_rejects to be int, found 0.5 \(float\)"),
        ({"key": Raw("k")}, "Pipeline has no option 'key'. Write message_key instead"),
        ({"publish_timeout": 9}, "Pipeline has no option 'publish_timeout'. Write tuning instead"),
        ({"toppics": "t"}, "Pipeline has no option 'toppics'. Write topics instead"),
        (
            {"max_rejects": 1, "max_reject_share": 0.5},
            "expected one of max_rejects and max_reject_share, found max_rejects=1, max_reject_share=0.5",
        ),
        ({"transform": 5}, r"expected transform to be text or a function, found 5 \(int\)"),
        ({"transform": " "}, "expected the transform to be a query or a function, found ' '"),
        ({"allow_nondeterministic": 1}, r"to be str or a tuple of str, found 1 \(int\)"),
        ({"on_loss": "ignore"}, "expected on_loss to be 'fail' or 'skip', found 'ignore'"),
        (
            {"max_rejects": -1},
            "expected max_rejects to be 0 or more; max_reject_share allows a share of the records, found -1",
        ),
        (
            {"freshness": timedelta(0)},
            r"expected freshness to be more than 0, such as .* found .*timedelta\(0\)",
        ),
        ({"freshness": 3600}, r"expected freshness to be str or timedelta or None, found 3600 \(int\)"),
        ({"value": Raw("kafka_offset")}, r"the pipeline's columns kafka_offset have names that lineage"),
        ({"value": Raw("task_attempt")}, r"the pipeline's columns task_attempt have names that lineage"),
        (
            {"value": Json("batch_id int, kafka_topic text")},
            r"columns batch_id, kafka_topic have names that lineage",
        ),
    ],
)
def test_a_pipeline_that_cannot_work_is_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        flights_pipeline(**changes)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Json('"A" int, a int'), "the columns 'A' and 'a' that the transform gets have one name in Spark"),
        (Json('"Kafka_Offset" int'), "the columns 'kafka_offset' and 'Kafka_Offset' .* Rename the value's"),
        (
            Json("exactbatch_outcome int"),
            "the value has a column 'exactbatch_outcome', and a transform gets another column",
        ),
        (Json('"Exactbatch_Outcome" int'), "'exactbatch_outcome' and 'Exactbatch_Outcome'"),
        (Json("kafka_topic text"), "the value has a column 'kafka_topic'"),
    ],
)
def test_names_that_are_one_to_spark_are_refused_with_transform_alone(value, message):
    with pytest.raises(ConfigurationError, match=message):
        flights_pipeline(value=value, transform="select * from records")
    if "afka" not in message:
        assert flights_pipeline(value=value)


def test_an_upsert_has_a_column_deleted_of_its_own():
    sink = Upsert("public.flight", key=("id",))
    with pytest.raises(ConfigurationError, match="the columns 'deleted' and 'Deleted'"):
        flights_pipeline(value=Json('id int, "Deleted" bool'), sink=sink, transform="select * from records")


@pytest.mark.parametrize(
    "start", ["earliest", "latest", "group:etl", {"flights": {0: 5}}, {}, "2026-11-21T08:00Z"]
)
def test_every_kind_of_start_is_taken(start):
    assert flights_pipeline(start=start).start == start


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("flight", ("public", "flight")),
        ("air.flight", ("air", "flight")),
        ('"Air Line"."Flight 1"', ("Air Line", "Flight 1")),
        ('air."say ""hi"""', ("air", 'say "hi"')),
    ],
)
def test_a_target_names_a_table_as_postgres_does(target, name):
    assert TargetTable(target).name == name


@pytest.mark.parametrize("target", ["", "Flight", "a.b.c", "a.", '"a', "a b", "a; drop table b", '""'])
def test_what_is_no_table_name_is_refused(target):
    with pytest.raises(
        ConfigurationError, match="expected a target as 'schema.table', lower-case or in double"
    ):
        Append(target)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that load_pipeline finds: module(name, text)."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


def test_a_pipeline_is_loaded_by_module_and_name():
    assert load_pipeline("pipelines.flights:flights").name == "flights"


@pytest.mark.parametrize(
    "reference", ["", "pipelines.flights", "pipelines.flights:", ":flights", ".flights:x"]
)
def test_a_reference_without_module_and_name_is_refused(reference):
    with pytest.raises(
        ConfigurationError, match="expected a pipeline as 'module:name', for example 'pipelines"
    ):
        load_pipeline(reference)


@pytest.mark.parametrize("whole", ["shop", "tables_of_shop:shop"])
def test_doctor_finds_a_table_by_the_name_that_other_commands_take(module, monkeypatch, whole):
    module(
        "tables_of_shop",
        """
from exactbatch import Append, Json, Pipeline, Tables
orders = Pipeline(name="orders", topics=("o",), value=Json("id int"), sink=Append("public.o"))
shop = Tables(name="shop", topics=("shop.customers",), pipeline=lambda topic: orders)
""",
    )
    shop = importlib.import_module("tables_of_shop")
    monkeypatch.setitem(sys.modules, "pipelines.shop", shop)
    found, findings = find_pipelines([f"{whole}.customers", "tables_of_shop:orders.customers"])
    assert found == {f"{whole}.customers": shop.shop}
    assert [each.found for each in findings] == ["'tables_of_shop:orders' is one pipeline, and no Tables."]


@pytest.mark.parametrize("name", ["pipelines.flihgts", "pipleines.flights", "jobs/pipelines/flights.py"])
def test_a_module_that_is_not_there_is_named(name):
    with pytest.raises(ConfigurationError, match=f"there is no module '{name}' for '{name}:flights'"):
        load_pipeline(f"{name}:flights")


def test_a_misspelt_module_is_answered_with_those_that_are_there():
    with pytest.raises(
        ConfigurationError, match="The package pipelines has: .*flights.* Did you mean flights"
    ):
        load_pipeline("pipelines.flihgts:flights")
    with pytest.raises(ConfigurationError, match="or add the folder that has it to PYTHONPATH"):
        load_pipeline("pipleines.flights:flights")


def test_a_misspelt_name_is_answered_with_those_that_are_there():
    with pytest.raises(ConfigurationError) as caught:
        load_pipeline("pipelines.flights:flight")
    assert str(caught.value) == (
        "expected a Pipeline named 'flight' in pipelines.flights, found nothing of that name; "
        "the module has: flights"
    )


def test_a_name_that_is_no_pipeline_is_told_with_its_type(module):
    module("no_pipeline_here", "flights = 5")
    with pytest.raises(ConfigurationError, match="found int; the module has: no pipeline"):
        load_pipeline("no_pipeline_here:flights")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import not_there_at_all",
            "ModuleNotFoundError: No module named 'not_there_at_all' .broken.py, line 1",
        ),
        ("x = 1\nx = Pipeline(", "SyntaxError: '.' was never closed .broken.py, line 2"),
        (
            "from exactbatch import Pipeline\nPipeline(**{1: 2})",
            "TypeError: keywords must be strings.*broken.py, line 2",
        ),
        ("raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_module_that_cannot_be_imported_ends_with_what_it_raises(module, text, said):
    """It would again, so it is no error that may pass; nor does it end a command as if all were well."""
    module("broken", text)
    with pytest.raises(ConfigurationError, match=f"the module 'broken' cannot be imported: {said}"):
        load_pipeline("broken:flights")


@pytest.mark.parametrize(
    ("number", "share", "records", "allowed"),
    [
        (0, None, 100, 0),
        (7, None, 3, 7),
        (0, 0.1, 109, 10),
        (0, 1.0, 5, 5),
        (0, 1, 5, 5),
        (0, 0.0, 5, 0),
        (0, 0.29, 100, 29),
        (0, 0.043, 10_000, 430),
    ],
)
def test_rejects_are_allowed_by_number_or_by_share(number, share, records, allowed):
    pipeline = flights_pipeline(max_rejects=number, max_reject_share=share)
    assert pipeline.rejects_allowed(records) == allowed
    assert pipeline.allows_rejects == (allowed > 0)


@pytest.mark.parametrize("share", [-1, 1.5, -0.1, float("nan")])
def test_a_share_of_rejects_that_is_none_is_refused(share):
    with pytest.raises(ConfigurationError, match=r"a share from 0\.0 to 1\.0"):
        flights_pipeline(max_reject_share=share)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_connections": 0}, "expected max_connections to be 1 or more, found 0"),
        ({"read_timeout": "0 seconds"}, "expected read_timeout to be more than 0, found '0 seconds'"),
        ({"lock_timeout": timedelta(seconds=-2)}, "lock_timeout: expected a length of time such as"),
        (
            {"statement_timeout": "1 month"},
            "statement_timeout: expected a length of time .*, found '1 month'",
        ),
        ({"statement_timeout": 60}, r"expected statement_timeout to be str or timedelta, found 60 \(int\)"),
        ({"launch_timeout": "29 seconds"}, "launch_timeout is 29 s. Make it 30 or more"),
        ({"publish_timeout": 9}, "Tuning has no option 'publish_timeout'. Write lock_timeout instead"),
    ],
)
def test_tuning_is_checked(options, said):
    with pytest.raises(ConfigurationError, match=said):
        Tuning(**options)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {"sink": Upsert("public.x", key=("id",))},
            "a sink whose target is derived from all ranges (upsert)",
        ),
        ({"sink": Append("public.x", lineage="batch")}, "rows that come from many records (lineage='batch')"),
        (
            {"value": Json("id int, u uuid")},
            "the column u of type uuid, whose values Postgres casts from text",
        ),
    ],
)
def test_what_ranges_cannot_give_by_themselves_needs_one_transaction(changes, found):
    with pytest.raises(ConfigurationError) as caught:
        flights_pipeline(**{"value": Json("id int"), **changes}, commit="partition")
    assert (
        "commit='partition' needs rows that each come from one range and are copied as they are, found "
        + found
        in str(caught.value)
    )
    assert str(caught.value).endswith("Use commit='batch'.")
    assert flights_pipeline(**{"value": Json("id int"), **changes}).commit == "batch"


def test_a_way_to_commit_that_there_is_not_is_refused():
    with pytest.raises(ConfigurationError, match="expected commit to be 'batch' or 'partition', found 'row'"):
        flights_pipeline(commit="row")


@pytest.mark.parametrize(
    ("rejected", "records", "share"),
    [(6, 6, "100 %"), (1, 3, "33 %"), (46, 100_000, "0.046 %"), (1, 10**9, "0.0000001 %")],
)
def test_shares_are_plain_numbers(rejected, records, share):
    pipeline = Pipeline(name="p", topics=("t",), value=Raw(), sink=Append("t"))
    assert f"({share})" in pipeline.too_many_rejects(rejected, records)


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ([Append("public.all"), Upsert("public.latest", key=("id",))], "the sink has several"),
        (Upsert("public.latest", key=("id",), history=False), "forward needs the history of the Upsert"),
    ],
)
def test_results_of_a_sink_whose_messages_would_be_others_than_its_rows_are_not_forwarded(sink, message):
    with pytest.raises(ConfigurationError, match=message):
        Pipeline(name="x", topics=("t",), value=Json("id int"), sink=sink, forward=ToTopic("results"))


def test_a_member_of_tables_does_not_forward():
    tables = Tables(
        name="shop",
        topics=("shop.a",),
        pipeline=lambda t: Pipeline(
            name=t.name,
            topics=(t.topic,),
            value=Json("id int"),
            sink=Append("public.a"),
            forward=ToTopic("results"),
        ),
    )
    with pytest.raises(ConfigurationError, match=r"shop\.a forwards its results to 'results'"):
        tables.member("shop.a")


def test_targets_of_one_transaction_keep_their_history():
    sink = [Append("public.all"), Upsert("public.latest", key=("id",), history=False)]
    with pytest.raises(ConfigurationError, match="history=False, so that a replay cannot retract"):
        Pipeline(name="x", topics=("t",), value=Json("id int"), sink=sink)
