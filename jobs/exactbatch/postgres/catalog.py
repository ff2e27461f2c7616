"""Read from the catalog the facts about a target's tables that could alter or prevent what a batch writes."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exactbatch.errors import StagedRowsDiffer, TargetMismatch
from exactbatch.postgres.connection import Cursor

# {0} is a parameter with the table as text in double quotes, and {1} a query for its partitions.
_FACTS: Final = """
with family as (
    select to_regclass({0})::oid as oid union {1}
), tables as (
    select c.*, format('%I.%I', n.nspname, c.relname) as named
    from family f join pg_class c on c.oid = f.oid join pg_namespace n on n.oid = c.relnamespace
)
select 'kind' as what, named as "table", '' as name, relkind::text as value from tables
union all select 'persistence', named, '', relpersistence::text from tables
union all select 'row security', named, '', case when row_security_active(oid) then 'on' else 'off' end from tables
union all select 'replica identity', named, '', relreplident::text from tables
union all
select 'column', t.named, a.attname::text, format_type(a.atttypid, a.atttypmod)
    || case when a.attcollation <> y.typcollation then ' collate ' || a.attcollation::regcollation::text
            else '' end
    || case when a.attnotnull then ' not null' else '' end
    || case when a.attgenerated <> '' or a.attidentity <> '' then ' generated' else '' end
from tables t join pg_attribute a on a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped
join pg_type y on y.oid = a.atttypid
union all
select 'constraint', t.named, k.conname::text, pg_get_constraintdef(k.oid)
from tables t join pg_constraint k on k.conrelid = t.oid and k.contype <> 'n' and k.conparentid = 0
union all
select 'foreign key from elsewhere', t.named, format('%I.%I (%s)', n.nspname, r.relname, k.conname),
    pg_get_constraintdef(k.oid)
from tables t join pg_constraint k on k.confrelid = t.oid and k.contype = 'f' and k.conparentid = 0
join pg_class r on r.oid = k.conrelid join pg_namespace n on n.oid = r.relnamespace
union all
select 'unique index', t.named, i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid)
from tables t join pg_index i on i.indrelid = t.oid and (i.indisunique or i.indisexclusion) and i.indisvalid
union all
select 'trigger', t.named, g.tgname::text,
    case when g.tgenabled = 'D' then 'disabled' else pg_get_triggerdef(g.oid) || ' ' || g.tgenabled::text end
from tables t join pg_trigger g on g.tgrelid = t.oid and not g.tgisinternal
union all
select 'function of the trigger', t.named, g.tgname::text, p.oid::regprocedure::text || ', ' || p.prosrc
from tables t join pg_trigger g on g.tgrelid = t.oid and not g.tgisinternal join pg_proc p on p.oid = g.tgfoid
union all
select 'rule', t.named, r.rulename::text,
    case when r.ev_enabled = 'D' then 'disabled' else pg_get_ruledef(r.oid) || ' ' || r.ev_enabled::text end
from tables t join pg_rewrite r on r.ev_class = t.oid and r.rulename <> '_RETURN'
union all
select 'inheritance', t.named, i.other::regclass::text, i.role
from tables t join (
    select inhrelid as this, inhparent as other, 'parent' as role from pg_inherits
    union all select inhparent, inhrelid, 'child' from pg_inherits
) i on i.this = t.oid
where t.relkind in ('r', 'f') and not t.relispartition
"""
_ALL_PARTITIONS: Final = "select relid::oid from pg_partition_tree(to_regclass({}))"
_UNUSUAL_PARTITIONS: Final = """
    select p.relid::oid from pg_partition_tree(to_regclass({})) p join pg_class c on c.oid = p.relid
    where c.relkind <> 'r' or c.relpersistence <> 'p' or c.relhastriggers or c.relhasrules or c.relrowsecurity
"""
_TRIGGER: Final = re.compile(
    r"TRIGGER .+? ((?:BEFORE|AFTER|INSTEAD OF) .+?) ON .* FOR EACH (ROW|STATEMENT)", re.S
)
_ACTION: Final = re.compile(r" ON (DELETE|UPDATE) (CASCADE|SET)")
_KINDS: Final = {
    "v": "a view",
    "m": "a materialized view",
    "S": "a sequence",
    "f": "a foreign table",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
    "t": "a TOAST table",
}
_OURS: Final = ("exactbatch", "exactbatch_staging")
_SYSTEM: Final = ("pg_catalog", "information_schema", "pg_toast")


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of the catalog about a table, with a name if a table can have several of its kind."""

    what: str
    table: str
    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.table}: {self.what}{f' {self.name}' if self.name else ''}"

    @property
    def is_trigger(self) -> bool:
        """True if it is an enabled trigger or rule: it may alter or drop what is written."""
        return self.what in ("trigger", "rule") and self.value != "disabled"

    @property
    def trigger(self) -> str:
        """The name of the trigger or rule, and the statements that fire it."""
        if (trigger := _TRIGGER.search(self.value)) is None:
            return f"{self.what} {self.name}"
        statement = "" if trigger[2] == "ROW" else ", for each statement"
        return f"{self.what} {self.name} ({trigger[1]}{statement})"


def read_facts(cursor: Cursor, tables: Iterable[str], *, all_partitions: bool = True) -> tuple[Fact, ...]:
    """Return the facts of tables, given as quoted text, and of their partitions; none for a missing table.

    Without `all_partitions`, partitions with no facts but columns, constraints and indexes are left out: a thousand
    partitions have tens of thousands of these.
    """
    facts: list[Fact] = []
    for table in tables:
        cursor.execute(_ALL_FACTS if all_partitions else _UNUSUAL_FACTS, (table, table))
        facts += (Fact(*row) for row in cursor.fetchall())
    return tuple(facts)


def check_kinds(target: str, facts: Sequence[Fact]) -> None:
    """Raise TargetMismatch if the target could lose what a committed batch has written."""
    for fact in facts:
        if (problem := _problem(fact)) is not None:
            raise TargetMismatch(f"target {target}: {problem} Nothing was written.")


def check_schema(target: str, schema: str) -> None:
    """Raise TargetMismatch for a target in a schema that exactbatch or Postgres uses for its own tables."""
    if schema in _OURS:
        owner = "exactbatch keeps its own tables"
    elif schema in _SYSTEM:
        owner = "Postgres keeps its own tables"
    else:
        return
    raise TargetMismatch(
        f"target {target}: {owner} in this schema. Nothing was written. Choose a table of another schema."
    )


def changes(before: Sequence[Fact], after: Sequence[Fact]) -> str:
    """Describe what has changed, for a message; empty if nothing has. Partitions may be added and dropped."""
    old_facts, new_facts = _by_key(before), _by_key(after)
    kept_tables = {fact.table for fact in before} & {fact.table for fact in after}
    changed = []
    for key in sorted({*old_facts, *new_facts}):
        old, new = old_facts.get(key), new_facts.get(key)
        fact = new or old_facts[key]
        if fact.table in kept_tables and (old is None or new is None or old.value != new.value):
            changed.append(
                f"{fact} is now {new.value if new else 'gone'}, was {old.value if old else 'not there'}"
            )
    return "; ".join(changed)


def check_unchanged(target: str, before: Sequence[Fact], after: Sequence[Fact]) -> None:
    """Raise StagedRowsDiffer, retryable, if a table has changed since the batch started."""
    if changed := changes(before, after):
        raise StagedRowsDiffer(
            f"target {target} was changed while the batch ran: {changed}. The staged rows were checked "
            f"against the table as it was before. Nothing was written; the retry checks them again."
        )


def check_copied_unaltered(target: str, facts: Iterable[Fact]) -> None:
    """Raise TargetMismatch if a trigger could alter rows that a COPY writes and that nothing is compared with."""
    if triggers := name_triggers(fact for fact in facts if "BEFORE" in fact.trigger):
        raise TargetMismatch(
            f"target {target}: {triggers} could alter rows while they are copied, and with commit='partition' there "
            f"are no staged rows to compare them with. Drop {triggers}, or use commit='batch'."
        )


def name_triggers(facts: Iterable[Fact]) -> str:
    """Name the triggers and rules among facts, for a message; empty if there are none."""
    return ", ".join(dict.fromkeys(fact.trigger for fact in facts if fact.is_trigger))


def name_row_changers(facts: Iterable[Fact]) -> str:
    """Name the triggers, rules and foreign keys that may change rows other than those that a statement writes.

    Foreign keys with an action reach rows of the table itself if it references itself, directly or through other
    tables.
    """
    return ", ".join(
        dict.fromkeys(
            fact.trigger if fact.is_trigger else f"foreign key {fact.name}"
            for fact in facts
            if fact.is_trigger or (fact.what == "foreign key from elsewhere" and _ACTION.search(fact.value))
        )
    )


def _problem(fact: Fact) -> str | None:
    """Return why a target with this fact is refused, and what to do; None if it is not."""
    match fact.what, fact.value:
        case "kind", "f":
            return (
                f"{fact.table} is a foreign table, which commits separately from the batch: after a failure "
                f"between the two commits its rows would be there twice. Use local tables; move data elsewhere "
                f"afterwards."
            )
        case "kind", kind if kind in _KINDS:
            return f"{fact.table} is {_KINDS[kind]}, not a table. Give the pipeline another target."
        case "persistence", "u":
            return (
                f"{fact.table} is unlogged: a crash of Postgres empties it, while the ledger says that its rows "
                f"are committed. Make it a logged table: alter table {fact.table} set logged;"
            )
        case "persistence", "t":
            return f"{fact.table} is a temporary table, which ends with its session. Use a permanent one."
        case "row security", "on":
            return (
                f"row security is on for {fact.table} and applies to this login: a policy could hide rows from a "
                f"replay, or drop rows that are written. Let the login own the table or give it the attribute "
                f"bypassrls, or switch row security off: alter table {fact.table} disable row level security;"
            )
        case "inheritance", role:
            return (
                f"{fact.table} has the inheritance {role} {fact.name}: rows of "
                f"one table would show in the other, as in a hypertable of TimescaleDB, which is such a parent and "
                f"moves rows into its children. Use declarative partitioning, or end it: "
                f"alter table {fact.name if role == 'child' else fact.table} no inherit "
                f"{fact.table if role == 'child' else fact.name};"
            )
    return None


def _by_key(facts: Iterable[Fact]) -> Mapping[tuple[str, str, str], Fact]:
    return {(fact.table, fact.what, fact.name): fact for fact in facts}


_FACTS_IN_PSYCOPG2: Final = _FACTS.replace("%", "%%")
_ALL_FACTS: Final = _FACTS_IN_PSYCOPG2.format("%s", _ALL_PARTITIONS.format("%s"))
_UNUSUAL_FACTS: Final = _FACTS_IN_PSYCOPG2.format("%s", _UNUSUAL_PARTITIONS.format("%s"))
