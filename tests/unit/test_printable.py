"""What a record holds reaches terminals and logs as escapes, never as the characters that these obey."""

import io
import unicodedata

import pytest

from exactbatch.batch.rows.rejected import Rejected, reject_batches
from exactbatch.cli.console import Terminal
from exactbatch.cli.table_layout import create_text_table, short
from exactbatch.errors import TooManyRejects
from exactbatch.errors.printable import printable
from exactbatch.kafka.records import KafkaRecord
from exactbatch.local import LocalStackError

HOSTILE = "a\x1b]0;title\x07\x1b[31m\x9b1m\u202egnp\u2066\r\nFAKE LINE\x00\u2028\x85"
SHOWN = r"a\x1b]0;title\x07\x1b[31m\x9b1m\u202egnp\u2066\r\nFAKE LINE\u0000\u2028\x85"


def test_controls_and_bidi_marks_become_escapes_and_text_stays():
    assert printable(HOSTILE) == SHOWN
    text = 'Zürich – 東京 ‘\\n’ {"a": "\\u202e"} שלום'
    assert printable(text) == text
    assert printable(SHOWN) == SHOWN
    obeyed = {
        character
        for character in map(chr, range(0x110000))
        if unicodedata.category(character) in {"Cc", "Zl", "Zp"}
        or unicodedata.bidirectional(character)
        in {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
        or character in "\u200e\u200f\u061c"
    }
    assert {each for each in map(chr, range(0x110000)) if printable(each) != each} == obeyed


def test_the_reason_of_a_reject_is_one_printable_line_and_its_value_stays():
    record = KafkaRecord(offset=3, key=b"\x1b", value=HOSTILE.encode(), headers=None)
    [rows] = reject_batches([Rejected("t", 0, record, f"expected a number, found {HOSTILE}", 7)])
    [row] = rows.to_pylist()
    assert row["reason"] == f"expected a number, found {SHOWN}"
    assert (row["key"], row["value"]) == (b"\x1b", HOSTILE.encode())


def test_an_error_is_one_printable_line():
    assert str(TooManyRejects(f"t[0] offset 3: {HOSTILE}")) == f"t[0] offset 3: {SHOWN}"


def test_an_error_of_the_local_stack_keeps_the_lines_of_a_log():
    assert str(LocalStackError("ended:\n  one\x1b[31m\n  two")) == "ended:\n  one\\x1b[31m\n  two"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_terminal_gets_no_escape_sequence_of_a_value(is_terminal):
    file = io.StringIO()
    table = create_text_table(HOSTILE, text=(HOSTILE,), numbers=())
    table.add_row(short(HOSTILE, 200))
    table.add_row(HOSTILE)
    terminal = Terminal(
        file=file, force_terminal=is_terminal, color_system="standard" if is_terminal else None, width=200
    )
    terminal.print(table, HOSTILE, "[red]red[/red]", markup=True)
    text = file.getvalue()
    assert not {"\x9b", "\x07", "\u202e", "\x1b]", "\x00"} & set(text)
    assert "\x1b]0;" not in text
    assert "\x1b[31mFAKE" not in text
    assert SHOWN in text
    assert ("\x1b[31mred" in text) is is_terminal
