"""What a target can be: each kind of table keeps what was written, or is refused with a message that says why."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from exactbatch import Aggregate, Append, Count, Sum, Upsert
from exactbatch.errors import TargetMismatch
from support.postgres_versions import TESTED
from support.staged_batches import LINEAGE, Batches, Database, trigger

MakeBatches = Callable[..., Batches]
DOCS = Path(__file__).parents[2] / "docs" / "targets.md"
SINKS = {
    "Append": Append("public.t"),
    "Upsert": Upsert("public.t", key=("id",)),
    "Aggregate": Aggregate("public.t", group_by=("id",), aggregates={"n": Count(), "v": Sum("v")}),
}
if TESTED == 14:
    # There its key is an index of expressions: no part of a table's definition, and not possible in a partitioned one.
    del SINKS["Aggregate"]
# What a target is made of that the pipeline `id int, v int` writes into.
COLUMNS = {
    "Append": f"id int, v int, {LINEAGE}",
    "Upsert": "id int not null, v int",
    "Aggregate": "id int, n bigint, v bigint",
}
# A key that the sink leaves unique, for foreign keys.
KEY = {"Append": "kafka_offset", "Upsert": "id", "Aggregate": "id"}
UNIQUE = {"Append": "", "Upsert": ", unique (id)", "Aggregate": ", unique nulls not distinct (id)"}


@dataclass(frozen=True)
class Kind:
    """A kind of target: statements that make it, {columns} and {unique} being the sink's, and what comes of it.

    `expected` is "exact", or a part of the message with which a batch is refused, for all sinks or by sink;
    "then" statements are run after a first batch.
    """

    name: str
    sql: str
    expected: str | dict[str, str] = "exact"
    then: str = ""
    core: bool = False

    def of(self, sink: str) -> str:
        return self.expected if isinstance(self.expected, str) else self.expected.get(sink, "exact")


PLAIN = "create table t ({columns}{unique})"
KEEPS = "rows that were deleted are still there"
ALTERED = r"not stored as they were|arrived|did not arrive|Postgres counts"
FAMILY = "create table t ({columns}{unique}) partition by "
KINDS = [
    Kind("made by exactbatch", "", core=True),
    Kind("made by you", PLAIN),
    Kind("unlogged", "create unlogged table t ({columns}{unique})", "t is unlogged", core=True),
    Kind("a view", "create table r ({columns}); create view t as select * from r", "is a view", core=True),
    Kind("a materialized view", "create table r ({columns}); create materialized view t as table r",
         "is a materialized view"),
    Kind("a sequence", "create sequence t", "is a sequence"),
    Kind("a foreign table", "create foreign data wrapper w; create server s foreign data wrapper w; "
         "create foreign table t ({columns}) server s", "is a foreign table"),
    Kind("with a foreign partition", "create foreign data wrapper w; create server s foreign data wrapper w; "
         + FAMILY.replace("{unique}", "") + "list (id); create table p partition of t default; "
         "create foreign table f partition of t for values in (99) server s", "f is a foreign table", core=True),
    Kind("with an unlogged partition", FAMILY + "list (id); create unlogged table p partition of t default",
         "p is unlogged"),
    Kind("partitioned by list", FAMILY + "list (id); create table p1 partition of t for values in (1); "
         "create table p2 partition of t default"),
    Kind("partitioned by range", FAMILY + "range (id); create table p1 partition of t for values from (0) to (3); "
         "create table p2 partition of t default", core=True),
    Kind("partitioned by hash", FAMILY + "hash (id); create table p1 partition of t for values with "
         "(modulus 2, remainder 0); create table p2 partition of t for values with (modulus 2, remainder 1)"),
    Kind("with a partition whose columns are in a different order", FAMILY + "list (id); "
         "create table p (x int, like t including all); alter table p drop column x; alter table t attach "
         "partition p default"),
    Kind("without a matching partition for a row", FAMILY + "range (id); "
         "create table p1 partition of t for values from (0) to (3)", "no partition of relation"),
    Kind("an inheritance child", "create table parent ({columns}); create table t ({unique_only}) inherits "
         "(parent)",
         "has the inheritance parent public.parent"),
    Kind("an inheritance parent", PLAIN + "; create table child () inherits (t)", "has the inheritance "
         "child public.child",
         core=True),
    Kind("with dropped columns", "create table t (gone int, {columns}{unique}); alter table t drop column gone"),
    Kind("with a column that has a default", "create table t ({columns}, more text default 'x'{unique})"),
    Kind("with an identity column", "create table t (nr bigint generated always as identity, {columns}{unique})"),
    Kind("with a generated column", "create table t ({columns}, twice bigint generated always as (id * 2) "
         "stored{unique})"),
    Kind("with an additional column that must not be null", "create table t ({columns}, more text not null{unique})",
         "column more"),
    Kind("row security that applies to the login",
         PLAIN + "; alter table t enable row level security; create policy p on t using (true); do $$ begin "
         "create role bound; exception when duplicate_object then null; end $$; grant all on schema exactbatch, "
         "exactbatch_staging, public to bound; grant all on all tables in schema exactbatch, public to bound; "
         "set role bound", "row security is on for public.t", core=True),
    Kind("row security that the login bypasses", PLAIN + "; alter table t enable row level security"),
    Kind("a rule that swallows inserts", PLAIN, ALTERED,
         then="create rule r as on insert to t do instead nothing"),
    Kind("a rule that swallows deletes", PLAIN, {"Append": KEEPS, "Upsert": KEEPS, "Aggregate": KEEPS},
         then="create rule r as on delete to t do instead nothing", core=True),
    Kind("a rule that also writes to another table", PLAIN + "; create table log (id int)",
         then="create rule r as on delete to t do also insert into log values (old.id)"),
    Kind("a BEFORE INSERT trigger that swallows rows", PLAIN, ALTERED,
         then=trigger("t", "before insert", "return null;")),
    Kind("a BEFORE INSERT trigger that alters rows", PLAIN, ALTERED,
         then=trigger("t", "before insert", "new.v := -1; return new;"), core=True),
    Kind("a BEFORE INSERT trigger that fills another column", "create table t ({columns}, more text{unique})",
         then=trigger("t", "before insert", "new.more := 'x'; return new;")),
    Kind("a trigger that raises", PLAIN, "not today",
         then=trigger("t", "before insert", "raise 'not today';")),
    Kind("an AFTER INSERT trigger that alters rows", PLAIN, ALTERED,
         then=trigger("t", "after insert", "update t set v = -1 where id = new.id; return null;")),
    Kind("a statement-level AFTER trigger that alters rows", PLAIN, ALTERED,
         then=trigger("t", "after insert", "update t set v = -1 where v <> -1; return null;", each="statement")),
    Kind("a deferred constraint trigger that deletes rows", PLAIN, ALTERED,
         then="create function late() returns trigger language plpgsql as $$ begin delete from t where id = "
         "new.id; "
         "return null; end $$; create constraint trigger late after insert on t deferrable initially deferred "
         "for each row execute function late()"),
    Kind("an AFTER trigger that changes rows of other batches or keys", PLAIN, "Postgres counts",
         then=trigger("t", "after insert or update or delete", "if pg_trigger_depth() < 2 then update t set "
         "v = -1 where id = 0; end if; return null;")),
    Kind("an AFTER trigger that fills another column", "create table t ({columns}, more text{unique})",
         "Postgres counts",
         then=trigger("t", "after insert", "update t set more = 'x' where id = new.id; return null;")),
    Kind("with a foreign key to itself, on delete cascade", "create table t ({columns}, up bigint{referable}, "
         "foreign key (up) references t ({key}) on delete cascade)", {"Append": "rows of the target itself"}),
    Kind("an AFTER trigger that logs", PLAIN + "; create table log (id int)",
         then=trigger("t", "after insert or update or delete", "insert into log values (1); return null;"),
         core=True),
    Kind("a BEFORE DELETE trigger that keeps rows", PLAIN, KEEPS,
         then=trigger("t", "before delete", "return null;"), core=True),
    Kind("a disabled trigger", PLAIN,
         then=trigger("t", "before insert", "return null;") + "; alter table t disable trigger meddle"),
    Kind("referenced by a foreign key, on delete cascade", "create table t ({columns}{referable}); "
         "create table note (id bigint references t ({key}) on delete cascade)",
         {"Append": r"on delete cascade\) would permanently change rows of public.note"}, core=True),
    Kind("referenced by a foreign key, on delete set null", "create table t ({columns}{referable}); "
         "create table note (id bigint references t ({key}) on delete set null)",
         {"Append": r"on delete set null\) would permanently change rows of public.note"}),
    Kind("referenced by rows of another table", "create table t ({columns}{referable}); "
         "create table note (id bigint references t ({key}))",
         {"Append": "rows reference rows .* deferrable initially deferred"}, then="insert into note values (1)"),
    Kind("referenced by rows of another table, deferrable", "create table t ({columns}{referable}); create table note "
         "(id bigint references t ({key}) deferrable initially deferred)", then="insert into note values "
         "(1)", core=True),
    Kind("in a publication, without replica identity", "create table t ({columns}); create publication p "
         "for table t",
         {"Append": "the publication p replicates deletes", "Upsert": "the publication p replicates deletes",
          "Aggregate": "the publication p replicates deletes"}),
    Kind("in a publication, with replica identity", PLAIN + "; alter table t replica identity full; "
         "create publication p for table t"),
    Kind("in a publication of some columns", PLAIN + "; alter table t replica identity full; "
         "create publication p for table t (v)", "the columns that it includes lack"),
    Kind("in a publication for all tables", "create publication p for all tables", core=True),
    Kind("a unique index that includes columns", "create table t ({columns}); create unique index on t "
         "({key}) include (v)",
         {"Aggregate": "unique nulls not distinct"}),
    Kind("an exclusion constraint that the rows violate", "create table t ({columns}{unique}, exclude ((1) with =))",
         "exclusion constraint"),
    Kind("only a deferrable unique constraint", "create table t ({columns}, unique ({key}) deferrable)",
         {"Upsert": "expected a primary key or unique", "Aggregate": "expected a primary key or unique"}),
    Kind("only a unique index on an expression", "create table t ({columns}); create unique index on t "
         "(({key} + 0))",
         {"Upsert": "expected a primary key or unique", "Aggregate": "expected a primary key or unique"}),
]  # fmt: skip
CASES = [
    pytest.param(kind, sink, marks=() if kind.core else pytest.mark.long, id=f"{kind.name}-{sink}")
    for kind in KINDS
    for sink in SINKS
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sink"), CASES)
def test_a_kind_of_target_is_exact_or_refused(db, batches, kind, sink):
    made = batches("id int, v int", SINKS[sink])
    db.execute("select 1;" + of_sink(kind.sql, sink))
    if (expected := kind.of(sink)) == "exact":
        work(db, kind, sink, made)
        return
    with pytest.raises(TargetMismatch, match=expected):
        work(db, kind, sink, made)


def work(db: Database, kind: Kind, sink: str, made: Batches) -> None:
    """Inserts, updates, a delete and replays, each looked at."""
    with_delete = (False,) if sink == "Upsert" else ()
    made.run(*((number, number * 10, *with_delete) for number in range(3)))
    check(db, sink, made)
    if kind.then:
        db.execute(of_sink(kind.then, sink))
    made.run(*((number, number * 10 + 1, *with_delete) for number in range(5)))
    check(db, sink, made)
    if sink == "Upsert":
        made.run((4, None, True))
        check(db, sink, made)
        made.replay((0, 0, 3))
    if sink == "Aggregate":  # a replay after which a group is gone
        made.log[0] = [(4 if row[0] == 3 else row[0], row[1]) for row in made.log[0]]
    made.replay()
    check(db, sink, made)


def of_sink(statement: str, sink: str) -> str:
    unique = UNIQUE[sink]
    return (
        statement.replace("{columns}", COLUMNS[sink])
        .replace("{unique_only}", unique.removeprefix(", "))
        .replace("{unique}", unique)
        .replace("{key}", KEY[sink])
        .replace("{referable}", unique or ", unique (kafka_offset)")
    )


def check(db: Database, sink: str, made: Batches) -> None:
    """The target is what the records make it, as this test counts them."""
    records = made.log[0]
    if sink == "Append":
        assert sorted(db.rows("select id, v, kafka_offset from t")) == sorted(
            (*row, offset) for offset, row in enumerate(records)
        )
    elif sink == "Upsert":
        latest = {row[0]: row for row in records}
        assert dict(db.rows("select id, v from t")) == {k: row[1] for k, row in latest.items() if not row[2]}
    else:
        groups: dict[int, list[int]] = {}
        for id_, value in records:
            groups.setdefault(id_, []).append(value)
        assert {row[0]: row[1:] for row in db.rows("select id, n, v from t")} == {
            id_: (len(values), sum(values)) for id_, values in groups.items()
        }


def table_of_docs() -> str:
    """The table of docs/targets.md: the kinds that are refused, and by which sinks."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for kind in KINDS:
        if refusing := tuple(sink for sink in SINKS if kind.of(sink) != "exact"):
            kinds.setdefault(refusing, []).append(kind.name)
    names = {tuple(SINKS): "every sink"}
    rows = [f"| {names.get(by, ' and '.join(by))} | {'; '.join(found)} |" for by, found in kinds.items()]
    return "\n".join(["| refused by | target |", "|---|---|", *rows])


def test_the_docs_say_what_becomes_of_each_kind():
    assert table_of_docs() in DOCS.read_text(encoding="utf-8")


def test_there_are_kinds_enough():
    assert len({kind.name for kind in KINDS}) >= 25


LOOSE = (  # a server without ICU has no such collation of its own
    'create collation loose from "C"; '
    "update pg_collation set collisdeterministic = false where collname = 'loose'; "
)


@pytest.mark.parametrize(
    ("column", "type_", "found"),
    [
        ("kafka_timestamp", "timestamptz(2)", "may change such values"),
        ("kafka_topic", "name", "may change such values"),
        ("kafka_topic", "varchar(248)", "may change such values"),
        ("kafka_topic", "char(249)", "may change such values"),
        ("kafka_topic", "text collate loose", "collation loose treats different topics as equal"),
        ("kafka_partition", "real", "may change such values"),
        ("kafka_offset", "double precision", "may change such values"),
        ("kafka_offset", "numeric", "may change such values"),
        ("kafka_offset", "integer", "may change such values"),
        ("batch_id", "shop_id", "may change such values"),
    ],
)
@pytest.mark.parametrize("sink", [SINKS["Append"], Upsert("public.t", key=("id",), history=False)])
def test_lineage_that_a_column_may_change_is_refused_until_the_statement_of_the_message(
    db, batches, sink, column, type_, found
):
    """A replay would find no rows, or those of another topic."""
    made = batches("id int, v int", sink)
    db.execute(LOOSE + "create domain shop_id as real")
    db.execute(f"create table t (id int unique, v int, {lineage_with(column, type_)})")
    row = (1, 2) if sink is SINKS["Append"] else (1, 2, False)
    with pytest.raises(TargetMismatch, match=f"column {column}: .*{found}") as refused:
        made.run(row)
    [statement] = re.findall("Run `(.*?)`", str(refused.value))
    db.execute(statement)
    made.run(row)
    assert db.rows("select id, v from t") == [(1, 2)]


@pytest.mark.parametrize(
    ("column", "type_"),
    [
        ("kafka_timestamp", "timestamptz(3)"),
        ("kafka_topic", "varchar(249)"),
        ("kafka_topic", "varchar"),
        ("kafka_partition", "smallint"),
        ("batch_id", "shop_id"),
    ],
)
def test_lineage_that_a_column_holds_exactly_is_replayed_and_audited(db, batches, column, type_):
    made = batches("id int, v int", SINKS["Append"])
    db.execute("create domain shop_id as numeric")
    db.execute(f"create table t (id int, v int, {lineage_with(column, type_)})")
    made.run((1, 2), (3, 4))
    made.log[0][1] = (3, 5)
    made.replay((0, 1, 2))
    check(db, "Append", made)
    assert db.rows("select id, v from t order by 1") == [(1, 2), (3, 5)]


def lineage_with(column: str, type_: str) -> str:
    """The columns of lineage, of which one has another type."""
    return ", ".join(
        f"{column} {type_}" if each.split()[0] == column else each for each in LINEAGE.split(", ")
    )
