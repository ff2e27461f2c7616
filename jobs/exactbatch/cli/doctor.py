"""`exactbatch doctor`."""

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from exactbatch.cli.completion import pipeline_names
from exactbatch.cli.console import AsJson, err, out, print_json
from exactbatch.cli.load_pipeline import REFERENCE_HELP, load_settings
from exactbatch.errors import ExactbatchError
from exactbatch.errors.exit_status import CHECK_FAILED
from exactbatch.operations.doctor.examine import examine
from exactbatch.operations.doctor.finding import Finding
from exactbatch.settings import Settings

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "red")}


def doctor(
    references: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PIPELINE",
            autocompletion=pipeline_names,
            help=f"{REFERENCE_HELP} Without one: all of the package `pipelines`.",
        ),
    ] = None,
    airflow: Annotated[
        str | None,
        typer.Option(metavar="CONN_ID", help="Airflow's REST API, from the variable AIRFLOW_CONN_<CONN_ID>."),
    ] = None,
    pools: Annotated[
        list[str] | None, typer.Option("--pool", metavar="NAME", help="A pool of the DAGs. Repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check everything that batches need, and say how to solve each problem. Exit status 3 if there is one."""
    settings: Settings | ExactbatchError
    try:
        settings = load_settings()
    except ExactbatchError as error:
        settings = error
    findings = []
    with err.status("checking") as shown:
        for finding in examine(
            settings,
            references or (),
            airflow=airflow,
            pools=pools or (),
            progress=lambda check: shown.update(f"checking: {check} …"),
        ):
            findings.append(finding)
            if not as_json:
                out.print(_line(finding))
    counts = Counter(finding.level for finding in findings)
    if as_json:
        print_json(
            {
                "problems": counts["problem"],
                "warnings": counts["warning"],
                "findings": list(map(asdict, findings)),
            }
        )
    else:
        out.print(f"{counts['problem']} problems, {counts['warning']} warnings, {counts['ok']} ok")
    if counts["problem"]:
        raise typer.Exit(CHECK_FAILED)


def _line(finding: Finding) -> Text:
    mark, color = _MARKS[finding.level]
    remedy = f"\n  → {finding.remedy}" if finding.remedy else ""
    return Text.assemble((mark, color), f" {finding.check}: {finding.found}", (remedy, "bold"))
