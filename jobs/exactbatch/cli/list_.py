"""`exactbatch list`."""

from rich.markup import escape

from exactbatch.cli.completion import pipeline_names
from exactbatch.cli.console import AsJson, out, print_json
from exactbatch.cli.load_pipeline import ledger_connection, load_settings
from exactbatch.cli.table_layout import create_text_table, short, time_text
from exactbatch.ledger import Definition, Ledger
from exactbatch.ledger.overview_rows import OverviewRows
from exactbatch.operations.overview import load_summaries
from exactbatch.postgres.connection import transaction

_TOPICS = 40  # characters of a pipeline's topics in a table


def list_(as_json: AsJson = False) -> None:
    """List the registered pipelines, and the modules of `pipelines` that are not registered. Asks only the ledger."""
    with ledger_connection(load_settings()) as connection:
        with transaction(connection):
            names = [each.name for each in Ledger(connection).registry.read_all()]
            since = OverviewRows(connection).registration_times(names)
        summaries = load_summaries(connection, names, batches=1)
    # Members of Tables are registered as NAME.TABLE.
    known = {*summaries, *(name.partition(".")[0] for name in summaries)}
    missing = [name for name in pipeline_names("") if name not in known]
    if as_json:
        pipelines = [
            {
                "pipeline": name,
                "target": each.definition.target,
                "other_targets": each.definition.others,
                "sink": each.definition.sink,
                "topics": each.topics,
                "topic_pattern": each.definition.topic_pattern,
                "registered_at": since[name],
                "newest_batch": each.newest
                and {
                    "batch_id": each.newest.batch_id,
                    "kind": each.newest.kind,
                    "status": each.newest.status,
                },
            }
            for name, each in summaries.items()
        ]
        print_json({"pipelines": pipelines, "not_registered": missing})
        return
    table = create_text_table(
        f"registered pipelines: {len(summaries)}",
        text=("pipeline", "target", "sink", "topics", "newest batch"),
        numbers=("since (UTC)",),
    )
    for name, each in summaries.items():
        newest = f"{each.newest.batch_id} {each.newest.status}" if each.newest else "–"
        topics = short(_topics_text(each.definition, each.topics), _TOPICS)
        table.add_row(
            escape(name),
            escape(", ".join([each.definition.target, *each.definition.others])),
            escape(each.definition.sink),
            escape(topics),
            newest,
            time_text(since[name]),
        )
    out.print(table)
    if missing:
        out.print(
            f"not registered: {', '.join(missing)}. `exactbatch register NAME` registers one.", markup=False
        )


def _topics_text(definition: Definition, topics: list[str]) -> str:
    return definition.topic_pattern or ", ".join(topics)
