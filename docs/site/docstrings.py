"""Show the attributes that a docstring lists in aligned columns as a list.

The docstrings of this project are written for an editor: a name, two or more spaces, and its meaning, which may go on
in further lines. Markdown would join these lines into one paragraph.
"""

import re
from typing import Any, Final

import griffe

# A name, or several, at the margin of the docstring, followed by its meaning and by lines that are indented further.
_ENTRY: Final = re.compile(r"^(?P<name>\w+(?:, \w+)*) {2,}(?P<text>\S.*(?:\n {4,}\S.*)*)$", re.MULTILINE)


def as_list(docstring: str) -> str:
    """Return a docstring whose aligned names and meanings are a list in Markdown."""
    return _ENTRY.sub(lambda entry: f"- **`{entry['name']}`**: {' '.join(entry['text'].split())}", docstring)


class AlignedAttributes(griffe.Extension):
    """Rewrites the docstrings of all objects."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = as_list(obj.docstring.value)
