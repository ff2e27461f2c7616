"""Versions of each connector order a row's changes as transactions commit, also where a snapshot meets the stream."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from exactbatch import Debezium, Pipeline, Upsert
from exactbatch.errors import ConfigurationError
from exactbatch.formats.decoders import find_decoder

LSN = "0000002b:000002e8:0003"


def decoded(version: Any, *events: tuple[str, dict[str, Any]]) -> Any:
    values = [
        json.dumps({"before": None, "after": {"id": 1}, "source": source, "op": op}).encode()
        for op, source in events
    ]
    return find_decoder(Debezium("id int", version=version)).decode(pa.array(values, pa.binary()))


def versions(version: Any, *events: tuple[str, dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The columns of the version, as a tuple for each event."""
    result = decoded(version, *events)
    assert result.rejects == ()
    names = result.rows.schema.names[1:]
    return [tuple(row[name] for name in names) for row in result.rows.to_pylist()]


def sequence(before: int | None, lsn: int, **source: Any) -> dict[str, Any]:
    """The source of a change of Postgres, after the end of a transaction."""
    text = json.dumps([None if before is None else str(before), str(lsn)], separators=(",", ":"))
    return {"lsn": lsn, "sequence": text, "snapshot": "false", **source}


@pytest.mark.parametrize(
    ("version", "events"),
    [
        (
            "postgres",
            [
                # The first transaction that is streamed has none before it.
                ("c", sequence(None, 24023040)),
                ("u", sequence(24023128, 24023110)),
                ("u", sequence(24023128, 24023129)),
                # Logged before the changes of the transaction that committed before it.
                ("c", sequence(24023136, 24023120)),
                ("u", sequence(9_999_999_999, 10_000_000_001)),
                ("u", sequence(10_000_000_002, 9_999_999_998)),
            ],
        ),
        (
            "mysql",
            [
                ("r", {"file": "", "pos": 0, "row": 0}),
                ("r", {"file": "mysql-bin.000003", "pos": 154, "row": 0}),
                ("c", {"file": "mysql-bin.000003", "pos": 484, "row": 1}),
                ("u", {"file": "mysql-bin.000003", "pos": 1000, "row": 0}),
                ("u", {"file": "mysql-bin.999999", "pos": 4, "row": 0}),
                ("u", {"file": "mysql-bin.1000000", "pos": 4, "row": 0}),
            ],
        ),
        (
            "sqlserver",
            [
                ("r", {"commit_lsn": None}),
                ("r", {"commit_lsn": LSN, "change_lsn": None}),
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
                ("u", {"scn": "997", "commit_scn": "1002"}),
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


@pytest.mark.parametrize(
    ("version", "sources"),
    [
        ("mysql", [{"file": "b.000003", "pos": 484, "row": row} for row in (0, 1, 0)]),
        (
            "sqlserver",
            [{"commit_lsn": LSN, "change_lsn": f"0000002b:000002e8:000{n}"} for n in (3, 1)],
        ),
        ("oracle", [{"scn": scn, "commit_scn": "9"} for scn in ("8", "7")]),
    ],
)
def test_changes_of_a_transaction_have_one_version_where_only_their_offsets_order_them(version, sources):
    assert len(set(versions(version, *(("u", source) for source in sources)))) == 1


def test_rows_of_a_snapshot_of_postgres_have_no_position():
    """A transaction that was open at the snapshot's position has changes before it, which the snapshot lacks."""
    events = [
        ("r", sequence(None, 24023128, snapshot="first")),
        ("r", sequence(24023100, 24023128, snapshot="last")),
        ("r", {"lsn": None}),
        ("r", {"lsn": 24023128, "snapshot": "true"}),
    ]
    assert versions("postgres", *events) == [(None, None)] * 4


def test_rows_of_an_incremental_snapshot_of_postgres_have_the_position_of_the_stream():
    row = sequence(24023100, 24023128, snapshot="incremental")
    assert versions("postgres", ("r", row), ("r", row | {"lsn": None})) == [(24023100, 24023128)] * 2
    [(at, reason)] = decoded("postgres", ("r", row | {"lsn": None, "sequence": None})).rejects
    assert (at, "the event has no source.sequence" in reason) == (0, True)


def test_the_commit_of_the_own_transaction_counts_where_a_connector_writes_it():
    events = [("u", sequence(100, 120)), ("u", sequence(100, 120, commit_lsn=130))]
    assert versions("postgres", *events) == [(100, 120), (130, 120)]


def test_columns_of_a_version_have_the_names_of_its_fields():
    def columns(version: str) -> list[tuple[str, str]]:
        return [(c.name, c.type) for c in Debezium("id int", version=version).columns[1:]]

    assert columns("postgres") == [("commit_lsn", "bigint"), ("lsn", "bigint")]
    assert columns("mysql") == columns("mariadb") == [("file", "bigint"), ("pos", "bigint")]
    assert columns("sqlserver") == [("commit_lsn", "text")]
    assert columns("oracle") == [("commit_scn", "numeric(20,0)")]
    assert columns("number") == [("number", "bigint")]
    assert versions("oracle", ("c", {"scn": "7", "commit_scn": "8"})) == [(Decimal(8),)]


@pytest.mark.parametrize(
    ("version", "op", "source", "said"),
    [
        ("postgres", "u", {}, "the event has no source.sequence"),
        ("postgres", "u", {"lsn": 5}, "the event has no source.sequence"),
        ("postgres", "u", {"sequence": '["5",null]'}, "the event has no source.lsn"),
        ("postgres", "u", {"lsn": 5, "sequence": '["5"]'}, "source.sequence: expected two positions"),
        ("postgres", "u", {"lsn": 5, "sequence": "[5,6]"}, "source.sequence: expected two positions"),
        ("mysql", "c", {"file": "", "pos": 1, "row": 0}, "the event has no source.file"),
        ("mysql", "c", {"file": "mysql-bin", "pos": 1, "row": 0}, "found 'mysql-bin'"),
        ("mysql", "c", {"file": "b.000001", "row": 0}, "the event has no source.pos"),
        ("sqlserver", "c", {"commit_lsn": "2B:1:1", "change_lsn": LSN}, "found '2B:1:1'"),
        ("sqlserver", "c", {"change_lsn": LSN}, "the event has no source.commit_lsn"),
        ("oracle", "c", {"scn": "1"}, "the event has no source.commit_scn"),
        ("oracle", "c", {"scn": "1", "commit_scn": "2:1,3:2"}, "expected one system change number"),
        ("oracle", "c", {"scn": 1, "commit_scn": 2}, "expected string, found number"),
    ],
)
def test_a_change_without_its_position_is_a_reject(version, op, source, said):
    good = sequence(1, 2) | {"file": "b.000001", "pos": 1, "row": 0, "commit_scn": "1", "scn": "1"}
    good |= {"commit_lsn": LSN} if version == "sqlserver" else {}
    result = decoded(version, ("c", good), (op, source), ("c", good))
    assert result.kept.to_pylist() == [0, 2]
    [(at, reason)] = result.rejects
    assert at == 1
    assert said in reason


def test_fields_of_a_version_are_no_columns_of_the_row():
    with pytest.raises(ConfigurationError, match="'pos', a part of the position, is also a column"):
        Debezium("id int, pos int", version="mysql")


@pytest.mark.parametrize("version", ["lsn", "commit_lsn", ("lsn", "commit_lsn"), ("id", "commit_lsn", "lsn")])
def test_an_upsert_orders_changes_by_the_whole_position(version):
    """By source.lsn alone, an insert that waited for a delete would be older than the delete."""
    value = Debezium("key int, id int", version="postgres")
    with pytest.raises(ConfigurationError, match="is not the position of a change, which is"):
        Pipeline(name="p", topics=("t",), value=value, sink=Upsert("public.t", key=("key",), version=version))
    whole = Upsert("public.t", key=("key",), version=("commit_lsn", "lsn"))
    traits = Pipeline(name="p", topics=("t",), value=value, sink=whole).traits
    assert traits.position_columns == ("commit_lsn", "lsn")
