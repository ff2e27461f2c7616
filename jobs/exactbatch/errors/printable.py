"""Text that a terminal, a log and a line can show: what a record holds may be quoted in it."""

from typing import Final

# Controls (C0, delete, C1), separators of lines and paragraphs, and marks that change the direction of text.
_CODES: Final = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x061C,
    *(0x200E, 0x200F),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)
_ESCAPES: Final = {code: chr(code).encode("unicode_escape").decode() for code in _CODES} | {
    0: "\\u0000"
}  # as JSON writes what Postgres cannot hold


def printable(text: str) -> str:
    """Return a text with an escape, such as \\x1b, \\n or \\u202e, for each character that a terminal or a reader of
    lines would obey instead of showing it. Printable text stays as it is."""
    return text.translate(_ESCAPES)


def printable_lines(text: str) -> str:
    """Return a text as printable() does, and keep its ends of lines."""
    return "\n".join(map(printable, text.split("\n")))
