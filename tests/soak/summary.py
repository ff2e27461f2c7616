"""The table that a run of the soak prints."""

from rich.table import Table

from soak.run import Report


def table(report: Report) -> Table:
    """Render the result of a run."""
    shown = Table("", "", box=None, show_header=False, title=f"seed {report.seed}", title_justify="left")
    account = report.account
    shown.add_row("minutes", f"{report.seconds / 60:.1f}")
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(account.kinds.items()))
    shown.add_row("records", f"{len(account.committed):,} committed: {kinds}")
    transactions = ", ".join(f"{count} {outcome}" for outcome, count in sorted(account.transactions.items()))
    shown.add_row("transactions", f"{transactions}; {account.aborted:,} records in aborted ones")
    for (kind, status), count in report.batches.items():
        shown.add_row("batches", f"{count:,} {kind} {status}")
    faults = report.faults.total()
    pace = f", one every {report.seconds / faults:.1f} s" if faults else ""
    shown.add_row("faults", f"{faults}{pace}")
    for fault, count in sorted(report.faults.items(), key=lambda each: -each[1]):
        shown.add_row("", f"{count:>4} {fault}")
    for kind, count in sorted(report.missed.items(), key=lambda each: -each[1]):
        shown.add_row("faults that found nothing to meet", f"{count:>4} {kind}")
    for error, count in sorted(report.errors.items(), key=lambda each: -each[1]):
        shown.add_row("errors of plans and batches", f"{count:>4} {error}")
    for crash in report.crashes:
        shown.add_row("unexpected", crash)
    shown.add_row("audits", f"{report.audits}, all exact" if report.failure is None else str(report.audits))
    shown.add_row("results", f"{report.results:,} in the topic, each once")
    for name, each in report.accounted.items():
        shown.add_row(
            name,
            f"{each.produced:,} records in = {each.rows:,} with rows + {each.rejected:,} rejected + "
            f"{each.tombstones:,} tombstones + {each.dropped:,} dropped + {each.lost:,} lost",
        )
    return shown
