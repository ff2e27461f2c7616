"""`exactbatch merge`."""

from dataclasses import asdict
from typing import Annotated

import typer

from exactbatch.cli import render
from exactbatch.cli.console import AsJson, DryRun, Yes, confirm, out, print_json
from exactbatch.cli.load_pipeline import Reference, ledger_connection, load
from exactbatch.cli.progress import counting
from exactbatch.operations.merge_partitions import merge_partitions, preview_merge

_MEGABYTE = 1024 * 1024


def merge(
    reference: Reference,
    max_size: Annotated[
        int, typer.Option("--max-size", metavar="MB", min=1, help="The largest partition to create, in MB.")
    ] = 512,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Merge small partitions of a target with layout="by_batch". Batches can run meanwhile."""
    pipeline, settings = load(reference)
    max_bytes = max_size * _MEGABYTE
    with ledger_connection(settings, pipeline) as connection:
        merged = preview_merge(connection, pipeline, max_bytes=max_bytes)
        if merged and not dry_run:
            before = sum(len(each.partitions) for each in merged)
            confirm(
                f"Merge {before} partitions of {pipeline.traits.target} into {len(merged)}? This cannot be undone.",
                yes=yes,
            )
            with counting("Merging partitions (MB)") as update:
                merged = merge_partitions(
                    connection,
                    pipeline,
                    max_bytes=max_bytes,
                    progress=lambda done, total: update(done // _MEGABYTE, total // _MEGABYTE),
                )
    if as_json:
        print_json({"pipeline": pipeline.name, "merged": [asdict(each) for each in merged]})
    else:
        out.print(render.merge_table(pipeline, merged, dry_run=dry_run))
