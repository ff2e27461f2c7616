"""Versions of each connector order a row's changes, also where a snapshot meets the stream."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from exactbatch import Debezium
from exactbatch.errors import ConfigurationError

LSN = "0000002b:000002e8:0003"


def decoded(version: Any, *events: tuple[str, dict[str, Any]]) -> Any:
    values = [
        json.dumps({"before": None, "after": {"id": 1}, "source": source, "op": op}).encode()
        for op, source in events
    ]
    return Debezium("id int", version=version).decode(pa.array(values, pa.binary()))


def versions(version: Any, *events: tuple[str, dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The columns of the version, as a tuple for each event."""
    result = decoded(version, *events)
    assert result.rejects == ()
    names = result.rows.schema.names[1:]
    return [tuple(row[name] for name in names) for row in result.rows.to_pylist()]


@pytest.mark.parametrize(
    ("version", "events"),
    [
        # A transaction that was open at the snapshot's position has changes before it, which the snapshot lacks.
        ("postgres", [("r", {"lsn": 24023128}), ("u", {"lsn": 24023040}), ("u", {"lsn": 24023129})]),
        (
            "mysql",
            [
                ("r", {"file": "", "pos": 0, "row": 0}),
                ("r", {"file": "mysql-bin.000003", "pos": 154, "row": 0}),
                ("c", {"file": "mysql-bin.000003", "pos": 484, "row": 0}),
                ("u", {"file": "mysql-bin.000003", "pos": 484, "row": 1}),
                ("u", {"file": "mysql-bin.999999", "pos": 4, "row": 0}),
                ("u", {"file": "mysql-bin.1000000", "pos": 4, "row": 0}),
            ],
        ),
        (
            "sqlserver",
            [
                ("r", {"commit_lsn": LSN, "change_lsn": None}),
                ("c", {"commit_lsn": LSN, "change_lsn": "0000002b:000002e8:0002", "event_serial_no": 1}),
                ("u", {"commit_lsn": LSN, "change_lsn": "0000002b:000002e8:0002", "event_serial_no": 2}),
                ("u", {"commit_lsn": "0000002b:0000a2e8:0001", "change_lsn": LSN, "event_serial_no": 1}),
                ("u", {"commit_lsn": "0000003b:00000001:0001", "change_lsn": LSN, "event_serial_no": 1}),
            ],
        ),
        (
            "oracle",
            [
                ("r", {"scn": None}),
                ("u", {"scn": "980", "commit_scn": "990"}),
                ("r", {"scn": "999"}),
                # Changed before the snapshot, and committed after it.
                ("u", {"scn": "998", "commit_scn": "1001"}),
                ("u", {"scn": "1000", "commit_scn": "1001"}),
                ("u", {"scn": "18446744073709551614", "commit_scn": "18446744073709551615"}),
            ],
        ),
    ],
)
def test_versions_order_changes_as_the_source_made_them(version, events):
    ordered = versions(version, *events)
    assert ordered == sorted(ordered)
    assert len(set(ordered)) == len(ordered)
    assert versions(version, *reversed(events)) == ordered[::-1]


def test_rows_of_all_snapshots_of_postgres_have_the_same_version():
    """Then the greater offset decides: that of the later snapshot. An incremental one has no position."""
    events = [("r", {"lsn": 24023128}), ("r", {"lsn": None}), ("r", {"lsn": 24029999})]
    assert versions("postgres", *events) == [(0,)] * 3


def test_columns_of_a_version_have_the_names_of_its_fields():
    assert [(c.name, c.type) for c in Debezium("id int", version="mariadb").columns[1:]] == [
        ("file", "bigint"),
        ("pos", "bigint"),
        ("row", "bigint"),
    ]
    assert Debezium("id int", version=("commit_scn", "scn")).columns == Debezium("id int", "oracle").columns
    assert Debezium("id int", version="lsn").columns == Debezium("id int", "postgres").columns
    assert versions("oracle", ("c", {"scn": "7", "commit_scn": "8"})) == [(Decimal(8), Decimal(7))]


@pytest.mark.parametrize(
    ("version", "op", "source", "said"),
    [
        ("postgres", "u", {}, "the event has no source.lsn"),
        ("mysql", "c", {"file": "", "pos": 1, "row": 0}, "the event has no source.file"),
        ("mysql", "c", {"file": "mysql-bin", "pos": 1, "row": 0}, "found 'mysql-bin'"),
        ("mysql", "c", {"file": "b.000001", "row": 0}, "the event has no source.pos"),
        ("mysql", "c", {"file": "b.000001", "pos": 4}, "the event has no source.row"),
        ("sqlserver", "c", {"commit_lsn": "2B:1:1", "change_lsn": LSN}, "found '2B:1:1'"),
        ("sqlserver", "c", {"commit_lsn": LSN, "event_serial_no": 1}, "the event has no source.change_lsn"),
        ("oracle", "c", {"scn": "1"}, "the event has no source.commit_scn"),
        ("oracle", "c", {"scn": "1", "commit_scn": "2:1,3:2"}, "expected one system change number"),
        ("oracle", "c", {"scn": 1, "commit_scn": "2"}, "expected string, found number"),
    ],
)
def test_a_change_without_its_position_is_a_reject(version, op, source, said):
    good = {
        "lsn": 1,
        "file": "b.000001",
        "pos": 1,
        "row": 0,
        "commit_lsn": LSN,
        "change_lsn": LSN,
        "event_serial_no": 1,
        "commit_scn": "1",
        "scn": "1",
    }
    result = decoded(version, ("c", good), (op, source), ("c", good))
    assert result.kept.to_pylist() == [0, 2]
    [(at, reason)] = result.rejects
    assert at == 1
    assert said in reason


def test_fields_of_a_version_are_no_columns_of_the_row():
    with pytest.raises(ConfigurationError, match="'pos', a field of source, is also a column"):
        Debezium("id int, pos int", version="mysql")
