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
    for name, shape in bench["shapes"].items():
        lines += shape_section(name, shape)
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
        "  Compare tools with each other, not with numbers from elsewhere.",
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
    """Return the table of one shape, and draw its plot."""
    ways = {key: way for key, way in shape["ways"].items() if key != "spark_noop"}
    colours = {key: _colour(key) for key in ways}
    figure = Figure(figsize=(7.5, 0.6 + 0.32 * len(ways)), layout="constrained")
    axes = figure.subplots()
    labels = [way["title"] for way in ways.values()]
    bars = axes.barh(
        labels, [way["rows_per_s"] / 1000 for way in ways.values()], color=list(colours.values())
    )
    shares = [way.get("share_of_reference") for way in ways.values()]
    notes = [
        f"{way['rows_per_s'] / 1000:,.0f}" + ("" if share is None else f" ({share:.0%})")
        for way, share in zip(ways.values(), shares, strict=True)
    ]
    axes.bar_label(bars, notes, padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("thousand rows/s (share of the reference)")
    _save(figure, name)
    lines = [
        f"## {shape['title'][0].upper()}{shape['title'][1:]}",
        "",
        f"{shape['rows']:,} records, {shape['bytes'] / 1e6:,.0f} MB of values; medians of "
        f"{len(shape['rounds'])} rounds. Postgres has "
        + ", ".join(f"`{name} = {value}`" for name, value in shape["postgres_settings"].items())
        + ".",
        "",
        f"![Throughput by tool](benchmark/{name}.svg)",
        "",
        "| tool | rows/s | of the reference | CPU s per million | with Kafka and Postgres | peak MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for key, way in shape["ways"].items():
        # What writes nothing has no share of a reference that writes.
        share = None if key == "spark_noop" else way.get("share_of_reference")
        lines.append(
            f"| {way['title']} | {way['rows_per_s']:,} "
            f"| {'' if share is None else f'{share:.0%}'} | {way['cpu_s_per_million']:.2f} "
            f"| {way['cpu_s_per_million_with_servers']:.2f} | {way['peak_mb']:,} |"
        )
    return [*lines, ""]


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
