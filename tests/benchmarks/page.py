"""Write docs/evidence/benchmark.md with its plots from what `make bench` and the other benchmarks have measured.

Reads build/bench.json, and build/memory.json, build/latency.json and build/audit.json if they exist.
"""

import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
EVIDENCE = ROOT / "docs" / "evidence"
PLOTS = EVIDENCE / "benchmark"
OURS, PEER, LIMIT = "#2f6fb0", "#a8a8a8", "#d9822b"
# The parts of a batch's seconds, each in its colour.
STAGES = {"plan": "#c2d6ea", "read, decode, stage": "#2f6fb0", "publish": "#173a5e"}


def main() -> None:
    """Write the page, the plots and a copy of the numbers."""
    mpl.rcParams.update({"svg.hashsalt": "exactbatch", "font.size": 9, "axes.spines.top": False})
    bench = json.loads((BUILD / "bench.json").read_text())
    memory, latency, audit = (_read(BUILD / f"{name}.json") for name in ("memory", "latency", "audit"))
    PLOTS.mkdir(parents=True, exist_ok=True)
    shutil.copy(BUILD / "bench.json", PLOTS / "bench.json")
    lines = [*introduction(bench)]
    (first, shape), *others = bench["shapes"].items()
    lines += [*shape_section(first, shape), *others_section(dict(others))]
    if stages := _stages(bench["shapes"].get("flights", {"ways": {}})["ways"]):
        _bars("stages", "seconds of a batch, by stage", stages, STAGES)
        lines += ["## Time by stage", "", "![Time by stage](benchmark/stages.svg)", ""]
    if memory is not None:
        lines += growth_section(memory)
    if latency is not None:
        lines += latency_section(latency)
    if audit is not None:
        lines += audit_section(audit)
    lines += versions_section(bench)
    (EVIDENCE / "benchmark.md").write_text("\n".join(lines).rstrip() + "\n")


def introduction(bench: Mapping[str, Any]) -> list[str]:
    """Return what was measured, and how."""
    facts = bench["facts"]
    others = max(shape["cpu_share_of_others"] for shape in bench["shapes"].values())
    return [
        "# Benchmark",
        "",
        "Different tools load the same topics ([all numbers](benchmark/bench.json)).",
        "",
        f"- Kafka, Postgres and the tool under test share {facts['cores']} cores of a virtual machine; a topic has "
        f"{facts['partitions']} partitions.",
        "- exactbatch runs with `exactbatch[fast]`; without it, large loads of flat JSON are slower ([what it",
        "  saves](ablation.md)).",
        "- Each tool has its own warmed-up process, large fetches, batches of 10,000 rows, and one connection for each",
        "  core. The tools alternate.",
        "- All numbers of a section are from one run. Medians of the same shape in two runs have differed by up to a",
        "  fifth.",
        "- After each round, row counts and sums of columns are compared, and the targets of exactbatch are audited.",
        f"  Other processes used at most {others:.0%} of the CPU time.",
        "- The **reference** consumes the topic with librdkafka's C consumer, and at the same time sends bytes that",
        "  were encoded beforehand by COPY to an equal table. It decodes and guarantees nothing; it is no limit.",
        "- Only exactbatch and the hand-written consumer commit rows and offsets in the same transaction.",
        "",
    ]


def shape_section(name: str, shape: Mapping[str, Any]) -> list[str]:
    """Return the plot of one shape, and the table with all of its numbers."""
    lines = [
        f"## {_title(shape)}",
        "",
        f"{_size(shape)}; medians of {len(shape['rounds'])} rounds. Postgres has "
        + ", ".join(f"`{setting} = {value}`" for setting, value in shape["postgres_settings"].items())
        + ", here and below.",
        "",
        _plot(name, shape),
        "",
        "| tool | rows/s | of the reference | CPU s per million | with Kafka and Postgres | peak MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for key, way in shape["ways"].items():
        lines.append(
            f"| {way['title']} | {way['rows_per_s']:,} | {_share(key, way)} | {way['cpu_s_per_million']:.2f} "
            f"| {way['cpu_s_per_million_with_servers']:.2f} | {way['peak_mb']:,} |"
        )
    return [*lines, ""]


def others_section(shapes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return one table of the rows/s of the other shapes, and their plots."""
    ways = {key: way["title"] for shape in shapes.values() for key, way in shape["ways"].items()}
    lines = [
        "## Other records",
        "",
        "Rows/s, and the share of the reference of the same run:",
        "",
        "| tool |" + "".join(f" {_title(shape)} |" for shape in shapes.values()),
        "| --- |" + " ---: |" * len(shapes),
    ]
    for key, title in ways.items():
        found = [shape["ways"].get(key) for shape in shapes.values()]
        cells = ["" if way is None else f"{way['rows_per_s']:,}{_bracketed(key, way)}" for way in found]
        lines.append(f"| {title} |" + "".join(f" {cell} |" for cell in cells))
    lines += ["", *(f"- **{_title(shape)}**: {_size(shape)}" for shape in shapes.values()), ""]
    return [*lines, *(line for name, shape in shapes.items() for line in (_plot(name, shape), ""))]


def _title(shape: Mapping[str, Any]) -> str:
    title: str = shape["title"]
    return title[0].upper() + title[1:]


def _size(shape: Mapping[str, Any]) -> str:
    return f"{shape['rows']:,} records, {shape['bytes'] / 1e6:,.0f} MB of values"


def _share(key: str, way: Mapping[str, Any]) -> str:
    """Return the share of the reference; empty for what writes nothing, beside a reference that writes."""
    share = None if key == "spark_noop" else way.get("share_of_reference")
    return "" if share is None else f"{share:.0%}"


def _bracketed(key: str, way: Mapping[str, Any]) -> str:
    share = _share(key, way)
    return f" ({share})" if share else ""


def _plot(name: str, shape: Mapping[str, Any]) -> str:
    """Draw the plot of a shape, and return the Markdown that shows it."""
    ways = {key: way for key, way in shape["ways"].items() if key != "spark_noop"}
    figure = Figure(figsize=(7.5, 0.6 + 0.32 * len(ways)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(
        [way["title"] for way in ways.values()],
        [way["rows_per_s"] / 1000 for way in ways.values()],
        color=[_colour(key) for key in ways],
    )
    notes = [f"{way['rows_per_s'] / 1000:,.0f}{_bracketed(key, way)}" for key, way in ways.items()]
    axes.bar_label(bars, notes, padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("thousand rows/s (share of the reference)")
    _save(figure, name)
    return f"![Throughput by tool, {_title(shape)}](benchmark/{name}.svg)"


def _stages(ways: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the seconds of each stage by the title of the way."""
    found = {}
    for way in ways.values():
        if not (seconds := way["stages"]):
            continue
        publish = seconds.get("publish", 0.0)
        found[way["title"]] = {
            "plan": seconds["plan"],
            "read, decode, stage": seconds["process"] - publish,
            "publish": publish,
        }
    return found


def _bars(
    name: str, label: str, values: Mapping[str, Mapping[str, float]], colours: Mapping[str, str]
) -> None:
    figure = Figure(figsize=(7.5, 0.9 + 0.32 * len(values)), layout="constrained")
    axes = figure.subplots()
    titles, left = list(values), [0.0] * len(values)
    for part, colour in colours.items():
        widths = [values[title][part] for title in titles]
        axes.barh(titles, widths, left=left, color=colour, label=part)
        left = [sum(pair) for pair in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel(label)
    figure.legend(loc="outside upper right", ncols=len(colours), frameon=False)
    _save(figure, name)


def growth_section(memory: Mapping[str, Any]) -> list[str]:
    """Return the table of batches of different sizes, and draw seconds and memory."""
    batches = {int(rows): numbers for rows, numbers in memory["batches"].items()}
    figure = Figure(figsize=(7.5, 2.6), layout="constrained")
    for axes, key, label in zip(
        figure.subplots(1, 2), ("seconds", "peak_mb"), ("seconds", "peak MB"), strict=True
    ):
        axes.plot(
            [rows / 1e6 for rows in batches],
            [numbers[key] for numbers in batches.values()],
            marker="o",
            color=OURS,
        )
        axes.set(xlabel="million records in one batch", ylabel=label, ylim=(0, None), xlim=(0, None))
    _save(figure, "growth")
    lines = [
        "## Growth",
        "",
        "Batches of different sizes, each in a new process.",
        "",
        "![Seconds and memory by the size of a batch](benchmark/growth.svg)",
        "",
        "| records | seconds | driver's Python MB | driver's JVM MB | Python workers MB | total at one moment MB |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for rows, numbers in batches.items():
        kinds = (numbers[kind] for kind in ("driver_python", "jvm", "python_workers", "peak_mb"))
        lines.append(f"| {rows:,} | {numbers['seconds']} | {' | '.join(f'{mb:,}' for mb in kinds)} |")
    return [*lines, ""]


def latency_section(latency: Mapping[str, Any]) -> list[str]:
    """Return the seconds of small batches, and draw them."""
    seconds: Mapping[str, Sequence[float]] = latency["seconds"]
    figure = Figure(figsize=(7.5, 0.7 + 0.4 * len(seconds)), layout="constrained")
    axes = figure.subplots()
    medians = [statistics.median(times) for times in seconds.values()]
    bars = axes.barh(list(seconds), medians, color=OURS)
    axes.bar_label(bars, [f"{median:.2f} s" for median in medians], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel(
        f"seconds from the start of a job over {latency['rows']:,} records to its commit, or to its end"
    )
    _save(figure, "latency")
    return [
        "## Latency",
        "",
        f"Batches of {latency['rows']:,} records, from the start of a job to its commit. A new process is",
        "`exactbatch run`, after `exactbatch archive`.",
        "",
        "![Latency of a small batch](benchmark/latency.svg)",
        "",
        *(
            f"- {name}: {statistics.median(times):.2f} s (median of {len(times)}; {min(times):.2f} to "
            f"{max(times):.2f})"
            for name, times in seconds.items()
        ),
        "",
        f"In a warm session, {latency['spread_rows']:,} records take:",
        "",
        *(
            f"- in {int(partitions):,} partition{'' if partitions == '1' else 's'}: "
            f"{statistics.median(times):.2f} s (median of {len(times)})"
            for partitions, times in latency["spread_seconds"].items()
        ),
        "",
    ]


def audit_section(audit: Mapping[str, Any]) -> list[str]:
    """Return the rates of audits."""
    return [
        "## Audit",
        "",
        f"Audits of {audit['rows']:,} records, {audit['rounds']} times each.",
        "The target is vacuumed and analyzed first, as autovacuum does soon after a large load.",
        f"Kafka, Postgres and the audit share {audit['cores']} cores, or one core where the name says so.",
        "",
        "| audit | offsets/s |",
        "| --- | ---: |",
        *(f"| {name} | {rate:,.0f} |" for name, rate in audit["offsets_per_s"].items()),
        "",
    ]


def versions_section(bench: Mapping[str, Any]) -> list[str]:
    """Return the versions of everything that was measured."""
    versions = {"Postgres": bench["facts"]["postgres"], **bench["versions"]}
    return ["## Versions", "", *(f"- {name}: {number}" for name, number in versions.items()), ""]


def _colour(way: str) -> str:
    if way == "limit":
        return LIMIT
    return OURS if way.startswith("exactbatch") else PEER


def _save(figure: Figure, name: str) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PLOTS / f"{name}.svg", metadata={"Date": None})


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


if __name__ == "__main__":
    main()
