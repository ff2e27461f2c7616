"""The columns that docs/reference/ledger.md documents."""

import re

from support.environment import DOCS


def documented(heading: str) -> list[tuple[str, str, str]]:
    """Return columns as [(table or view, column, type)], in the order of the page.

    `heading` is "## " for tables and "### " for views. One row of the page may have several columns, of one type. The
    tables under "Other tables" have a row each, with the columns and types in its last cell.
    """
    found, table = [], ""
    for line in (DOCS / "reference" / "ledger.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            level, _, title = line.partition(" ")
            table = title.removeprefix("`exactbatch.").rstrip("`") if f"{level} " == heading else ""
        elif not table or not line.startswith("| `"):
            continue
        elif table == "Other tables":
            _, name, _, columns, _ = line.split("|")
            types = r"`(\w+)` (\w+(?:\[\])?(?:, \*null\*)?)"
            found += [(name.strip(" `"), *each) for each in re.findall(types, columns)]
        else:
            _, names, kind, *_ = line.split("|")
            found += [(table, name, kind.strip()) for name in re.findall(r"`(\w+)`", names)]
    return found
