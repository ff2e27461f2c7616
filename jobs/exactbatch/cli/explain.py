"""`exactbatch explain`: why an error happens and how to recover from it, and the other pages that messages name."""

import difflib
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.table import Table

from exactbatch.cli.console import AsJson, Terminal, out, print_json
from exactbatch.errors import WrongUsage
from exactbatch.errors.explanation import Explanation, explained_errors, explained_topics
from exactbatch.errors.explanation import explain as explanation_of

_WIDTH = 100  # characters; longer lines of prose are hard to read


def explain(
    error: Annotated[
        str | None,
        typer.Argument(
            help="An error, such as OffsetsLost, or a topic, such as poolers. Without it: all of them.",
            autocompletion=lambda incomplete: (
                name for name in _names() if name.lower().startswith(incomplete.lower())
            ),
            metavar="NAME",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain an error: why it happens, what was written, and how to recover. Or print the page about a topic."""
    if error is None:
        _list([explanation_of(name) for name in explained_errors()], as_json=as_json)
        return
    found = explanation_of(_spelled(error))
    if as_json:
        kind = "topic" if found.name in explained_topics() else "error"
        print_json({kind: found.name, "summary": found.summary, "sections": found.sections})
    elif out.is_terminal and found.sections:
        Terminal(width=min(out.width, _WIDTH)).print(Markdown(found.markdown))
    else:
        typer.echo(found.markdown, nl=False)


def _list(explanations: list[Explanation], *, as_json: bool) -> None:
    if as_json:
        print_json([{"error": each.name, "summary": each.summary} for each in explanations])
        return
    table = Table("error", "meaning", box=None, pad_edge=False)
    for each in explanations:
        table.add_row(each.name, each.summary)
    out.print(table)
    out.print(f"\nTopics: {', '.join(explained_topics())}")


def _names() -> list[str]:
    return [*explained_errors(), *explained_topics()]


def _spelled(error: str) -> str:
    """Return the name as its page has it. Raises WrongUsage for a name without a page."""
    names = {name.lower(): name for name in _names()}
    if found := names.get(error.lower()):
        return found
    nearest = difflib.get_close_matches(error.lower(), names, n=1, cutoff=0.4)
    meant = f" Did you mean {names[nearest[0]]}?" if nearest else ""
    raise WrongUsage(f"no page is about {error!r}.{meant} `exactbatch explain` lists all pages.")
