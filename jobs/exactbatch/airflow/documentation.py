"""The documentation that Airflow shows with a pipeline's DAG."""

import html
from urllib.parse import urlencode

from exactbatch.pipeline import Pipeline
from exactbatch.tables import Tables


def documentation(found: Pipeline | Tables, pool: str, replay_pool: str) -> str:
    """Return the Markdown text about a pipeline, its tasks and its columns, or about many tables and their tasks."""
    if isinstance(found, Pipeline):
        return _describe_pipeline(found, pool, replay_pool)
    return _describe_tables(found, pool, replay_pool)


def _describe_pipeline(pipeline: Pipeline, pool: str, replay_pool: str) -> str:
    columns = "\n".join(
        f"| {_cell(column.name)} | {_cell(column.type)} |" for column in pipeline.value.columns
    )
    # Relative to the address of Airflow, which may be below a path.
    page = "exactbatch/?" + urlencode({"dag": pipeline.name})
    return f"""\
### {pipeline.name}

Exactly-once batches from **{html.escape(pipeline.topics_text)}** to **{pipeline.traits.target}**.

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


def _describe_tables(tables: Tables, pool: str, replay_pool: str) -> str:
    return f"""\
### {tables.name}

Exactly-once batches from **{html.escape(tables.topics_text)}**, each topic into a table of its own by a pipeline
`{tables.name}.TABLE`.

1. **plan_batch** plans a batch of each table and freezes its ranges in the ledger. Topics that have come to match join.
   If there is nothing new for any table, the run is skipped.
2. **process_batch** processes all of them with one Spark driver, {tables.at_a_time} at a time; each commits in its own
   Postgres transaction. **process_replay** does so for ranges that are processed again.
3. **report_batch** logs the batches that are committed and updates the asset `exactbatch.{tables.name}`.
4. **check_tables** fails if a table could not be planned, or if a batch is not committed.

A table that fails does not stop the others: the task fails at its end and names it. A retry processes only the rest.

To process data again, trigger a run with a time window, batch IDs or offset ranges, start a backfill, or clear
plan_batch with its downstream tasks; `tables` limits a run to some tables. `exactbatch status {tables.name}` and
`exactbatch audit {tables.name}` show all tables. Batches run in the pool `{pool}`, replays in `{replay_pool}`.
"""


def _cell(text: str) -> str:
    """Escape a name for a Markdown table, in which HTML is allowed."""
    return html.escape(text).replace("|", "\\|").replace("\n", " ")
