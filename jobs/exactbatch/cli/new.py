"""`exactbatch new`."""

import shlex
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated, Final

import pyarrow as pa
import typer
from rich.markup import escape
from rich.text import Text

from exactbatch.cli import sample_tables
from exactbatch.cli.console import AsJson, DryRun, err, out, print_json
from exactbatch.cli.load_pipeline import load_settings
from exactbatch.cli.progress import counting
from exactbatch.cli.project_files import Project, check_new, project_at, write_new
from exactbatch.errors import ConfigurationError, ExactbatchError
from exactbatch.formats.registry.registry_properties import registry_properties
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.kafka.sample import Bounds, Sample, sample
from exactbatch.sampling.column_names import module_name
from exactbatch.sampling.key_and_sink import TopicFacts
from exactbatch.sampling.proposal import Proposal, chosen_records, propose
from exactbatch.sampling.registry_columns import RegistryAddress, are_json, as_sent, with_schema_ids
from exactbatch.sampling.source_code import write_dag_file, write_pipeline_module, write_pipeline_test
from exactbatch.settings import Settings
from exactbatch.testing import Record, decode

_SCHEDULE: Final = "*/5 * * * *"
_TEST_RECORDS: Final = 3


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of the pipeline, its module and its table.")
    ],
    topic: Annotated[str, typer.Option(help="The topic to load.")],
    registry: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The schema registry, if values begin with a schema ID."),
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="SCHEMA.TABLE", help="The target table. Without it: public.NAME.")
    ] = None,
    records: Annotated[int, typer.Option(min=1, metavar="N", help="How many records to sample.")] = 5000,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Sample a topic, and write a pipeline for it: its module, its DAG and its test. Overwrites nothing."""
    module = module_name(name)
    project = project_at(Path.cwd(), _folder_of_pipelines())
    files = project.find_files(module)
    if not dry_run:
        check_new(files)
    settings = load_settings()
    found, facts = _sampled(settings, topic, records, registry)
    proposal = propose(module, topic, table or f"public.{module}", facts)
    contents = dict(zip(files[:2], _pipeline_code(proposal, project), strict=True))
    try:
        contents[files[2]] = _test_code(proposal, facts, project)
    except ExactbatchError as error:  # such as a registry that only answers with credentials
        err.print(f"[yellow]No test is written:[/yellow] {escape(str(error))}")
    if not project.package.exists():
        contents[project.package] = '"""The pipelines of this project."""\n'
    if not dry_run:
        write_new(contents)
    if as_json:
        print_json(sample_tables.proposal_as_json(proposal, found, contents, is_written=not dry_run))
        return
    out.print(sample_tables.proposal_view(proposal, found))
    if dry_run:
        for path, text in contents.items():
            out.print(Text(f"\n# {path}\n{text}"))
        out.print("Nothing was written (--dry-run).")
        return
    _say_what_next(proposal, project, [path for path in files if path in contents], given=name)


def _sampled(settings: Settings, topic: str, records: int, registry: str | None) -> tuple[Sample, TopicFacts]:
    """Read records of a topic. Raises TopicMissing, and ConfigurationError for a topic without committed records."""
    broker = KafkaBroker(settings.kafka)
    partitions = broker.partitions([topic])
    with counting(f"sampling {topic}") as update:
        found = sample(settings.kafka, partitions, Bounds(records), progress=update)
    if not len(found):
        uncommitted = sum(each.high_watermark - each.last_stable for each in partitions)
        held = f" {uncommitted:,} offsets belong to open transactions." if uncommitted else ""
        raise ConfigurationError(
            f"the topic {topic!r} has no committed record in its {len(partitions):,} partitions.{held} Nothing was "
            f"written. Send a few records first, or write the pipeline by hand.",
            topic=topic,
        )
    values = pa.concat_arrays([records.values() for _, records in found.parts])
    keys = pa.concat_arrays([records.keys() for _, records in found.parts])
    address = None if registry is None else RegistryAddress(registry, registry_properties(settings.kafka))
    if address is not None or not are_json(values):
        values = pa.concat_arrays(
            [with_schema_ids("value", records.values(), records, address) for _, records in found.parts]
        )
        keys = pa.concat_arrays(
            [with_schema_ids("key", records.keys(), records, address) for _, records in found.parts]
        )
    facts = TopicFacts(
        keys=keys,
        values=values,
        partitions=[range_.partition for range_, records in found.parts for _ in range(len(records))],
        is_compacted=_is_compacted(broker, topic),
        registry=address,
    )
    return found, facts


def _is_compacted(broker: KafkaBroker, topic: str) -> bool:
    try:
        return bool(broker.compacted([topic]))
    except ConfigurationError as error:
        err.print(f"[yellow]Assuming that the topic is not compacted:[/yellow] {escape(str(error))}")
        return False


def _pipeline_code(proposal: Proposal, project: Project) -> tuple[str, str]:
    """Return the source code of the module and of the DAG."""
    description = f"The topic {proposal.pipeline.topics_text}: {proposal.label}."
    dag = write_dag_file(proposal.pipeline, _SCHEDULE, separate=project.has_own_modules)
    return write_pipeline_module(proposal.pipeline, description), dag


def _test_code(proposal: Proposal, facts: TopicFacts, project: Project) -> str:
    """Return the source code of the test: a few short records of the sample, and the rows that they become."""
    pipeline = proposal.pipeline
    chosen = chosen_records(
        proposal.decoded, facts.values, count=_TEST_RECORDS, with_tombstone=pipeline.message_key is not None
    )
    sent = [
        as_sent(facts.values[index].as_py(), facts.keys[index].as_py(), facts.registry) for index in chosen
    ]
    rows = decode(pipeline, [Record(*parts) for parts in sent]).rows
    return write_pipeline_test(pipeline, sent, rows, separate=project.has_own_modules)


def _folder_of_pipelines() -> Path | None:
    """Return the folder from which Python imports the package `pipelines`; None if it finds none."""
    spec = PathFinder.find_spec("pipelines")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(folders[0]).parent if folders else None


def _say_what_next(proposal: Proposal, project: Project, files: Sequence[Path], *, given: str) -> None:
    name = proposal.pipeline.name
    here = Path.cwd()
    shown = [str(path.relative_to(here) if path.is_relative_to(here) else path) for path in files]
    out.print(f"\nWritten: {escape(', '.join(shown))}")
    if name != given:
        out.print(
            f"{escape(given)} is not a valid name for a Python module, so the pipeline is named [bold]{name}[/bold]."
        )
    tests = shown[2:]
    for test in tests:
        out.print(
            f"[yellow]{escape(test)} has copies of real records:[/yellow] replace what must not be in a repository."
        )
    out.print("\nNext:")
    if _folder_of_pipelines() != project.modules:
        out.print(
            f"  [bold]export PYTHONPATH={escape(shlex.quote(str(project.modules)))}[/bold]  # so that Python finds them"
        )
    for command, why in (
        (f"exactbatch try {name}", "decode the newest records, and write nothing"),
        *((f"pytest {shlex.quote(test)}", "the test that was written") for test in tests),
        (f"exactbatch register {name}", "create the ledger, and register the pipeline"),
        (f"exactbatch plan {name}", "show what the first batch would load"),
        (f"exactbatch run {name}", "load it, without Airflow"),
        (
            f"exactbatch local trigger {name}",
            "or by its DAG, in the Airflow of `exactbatch local up --airflow`",
        ),
        (
            f"airflow dags unpause {name}",
            f"in another Airflow: load what is new, on the schedule {_SCHEDULE}",
        ),
    ):
        out.print(f"  [bold]{escape(command)}[/bold]  # {why}")
