"""The documentation that Airflow shows with a pipeline's DAG."""

import html
from urllib.parse import urlencode

from exactbatch.pipeline import Pipeline


def documentation(pipeline: Pipeline, pool: str, replay_pool: str) -> str:
    """Return the Markdown text about a pipeline, its tasks and its columns."""
    columns = "\n".join(
        f"| {_cell(column.name)} | {_cell(column.type)} |" for column in pipeline.value.columns
    )
    # Relative to the address of Airflow, which may be below a path.
    page = "exactbatch/?" + urlencode({"dag": pipeline.name})
    return f"""\
### {pipeline.name}

Exactly-once batches from **{", ".join(pipeline.topics)}** to **{pipeline.sink.target}**.

1. **plan_batch** reads the stored offsets, asks Kafka for the latest ones, and freezes the ranges in the ledger. If
   there is nothing new, the run is skipped.
2. **process_batch** reads exactly these ranges with Spark and commits rows, rejects and offsets in one Postgres
   transaction. **process_replay** processes ranges again: the same transaction also retracts their earlier results.
3. **report_batch** logs the batch and updates the asset `exactbatch.{pipeline.name}`.

A retry processes the same ranges. A committed batch is never written twice.

**[Open {pipeline.name} in exactbatch]({page})**: what covers each offset, batches and rejects. To process data again,
select offsets, a batch or rejects there and choose *Replay…*, which shows first what would be replaced. Or:

- trigger a run with a time window, batch IDs or offset ranges;
- start a backfill, whose runs process the offsets of their data intervals; or
- clear plan_batch with its downstream tasks, in a run that has committed.

None of this moves the stored offsets, and scheduled runs go on.

`exactbatch status`, `exactbatch audit` and the tables of the schema `exactbatch` show the state. Batches run in the
pool `{pool}`, replays in `{replay_pool}`.

| column | type |
| --- | --- |
{columns}
"""


def _cell(text: str) -> str:
    """Escape a name for a Markdown table, in which HTML is allowed."""
    return html.escape(text).replace("|", "\\|").replace("\n", " ")
