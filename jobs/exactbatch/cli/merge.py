"""`exactbatch merge`."""

from dataclasses import asdict
from typing import Annotated

import typer

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load
from exactbatch.cli.progress import counting
from exactbatch.operations.merge_partitions import merge_partitions, preview_merge

_MEGABYTE = 1024 * 1024


def merge(
    reference: Reference,
    max_size: Annotated[
        int, typer.Option("--max-size", metavar="MB", min=1, help="The largest partition to make, in MB.")
    ] = 512,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which partitions would be merged, and stop.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Merge small partitions of a target with layout="by_batch". Batches may run meanwhile."""
    pipeline, settings = load(reference)
    with ledger_connection(settings, pipeline) as connection:
        if dry_run:
            merged = preview_merge(connection, pipeline, max_bytes=max_size * _MEGABYTE)
        else:
            with counting("Merging partitions (MB)") as update:
                merged = merge_partitions(
                    connection,
                    pipeline,
                    max_bytes=max_size * _MEGABYTE,
                    progress=lambda done, total: update(done // _MEGABYTE, total // _MEGABYTE),
                )
    if as_json:
        print_json({"pipeline": pipeline.name, "merged": [asdict(each) for each in merged]})
    else:
        out.print(render.merge_table(pipeline, merged, dry_run=dry_run))
