"""What the database says of a target's tables: what could keep them from holding what a batch writes."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exactbatch.errors import StagedRowsDiffer, TargetMismatch
from exactbatch.postgres.connection import Cursor

# {} is the table as text, in double quotes, once as each of two parameters.
FACTS_OF: Final = """
with family as (
    select to_regclass({0})::oid as oid union select relid::oid from pg_partition_tree(to_regclass({1}))
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
select 'function of the trigger', t.named, g.tgname::text, p.oid::regprocedure::text || ', ' || md5(p.prosrc)
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
    """One thing that the catalog says of a table, with a name where there can be several of its kind."""

    what: str
    table: str
    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.table}: {self.what}{f' {self.name}' if self.name else ''}"

    @property
    def is_guard(self) -> bool:
        """Whether it is a trigger or a rule that may alter what is written, or leave it out."""
        return self.what in ("trigger", "rule") and self.value != "disabled"

    @property
    def guard(self) -> str:
        """The trigger or rule, with what it answers to."""
        if (found := _TRIGGER.search(self.value)) is None:
            return f"{self.what} {self.name}"
        statement = "" if found[2] == "ROW" else ", for each statement"
        return f"{self.what} {self.name} ({found[1]}{statement})"


def read_facts(cursor: Cursor, tables: Iterable[str]) -> tuple[Fact, ...]:
    """The facts of tables, each given as quoted text, and of their partitions; none of a table that is missing."""
    facts: list[Fact] = []
    for table in tables:
        cursor.execute(_PSYCOPG2, (table, table))
        facts += (Fact(*row) for row in cursor.fetchall())
    return tuple(facts)


def check_kinds(written: str, facts: Sequence[Fact]) -> None:
    """Raise TargetMismatch for a target that cannot keep what a committed batch has written."""
    for fact in facts:
        if (refused := _refused(fact)) is not None:
            raise TargetMismatch(f"target {written}: {refused} Nothing was written.")


def check_schema(written: str, schema: str) -> None:
    """Raise TargetMismatch for a target in a schema that others keep their tables in."""
    if schema in _OURS:
        whose = "exactbatch keeps its own tables"
    elif schema in _SYSTEM:
        whose = "Postgres keeps its own tables"
    else:
        return
    raise TargetMismatch(
        f"target {written}: {whose} in this schema. Nothing was written. Choose a table of another schema."
    )


def changes(seen: Sequence[Fact], found: Sequence[Fact]) -> str:
    """What is not as it was seen, for a message; empty where all is. Partitions may come and go."""
    before, after = _by_key(seen), _by_key(found)
    both = {fact.table for fact in seen} & {fact.table for fact in found}
    changed = []
    for key in sorted({*before, *after}):
        fact = after.get(key) or before[key]
        then, now = before.get(key), after.get(key)
        if fact.table in both and (then is None or now is None or then.value != now.value):
            changed.append(
                f"{fact} is now {now.value if now else 'gone'}, was {then.value if then else 'not there'}"
            )
    return "; ".join(changed)


def check_unchanged(written: str, seen: Sequence[Fact], found: Sequence[Fact]) -> None:
    """Raise StagedRowsDiffer, retryable, when a table is not what it was when the batch started."""
    if changed := changes(seen, found):
        raise StagedRowsDiffer(
            f"target {written} was changed while the batch ran: {changed}. The staged rows were checked "
            f"against the table as it was before. Nothing was written; the retry checks them again."
        )


def guards_of(facts: Iterable[Fact]) -> str:
    """The triggers and rules among facts, for a message; empty where there are none."""
    return ", ".join(dict.fromkeys(fact.guard for fact in facts if fact.is_guard))


def changers_of(facts: Iterable[Fact]) -> str:
    """The triggers, rules and foreign keys that may change rows which a statement does not write, for a message.

    Foreign keys with an action reach rows of the table itself where it refers to itself, or others do and are
    referred to.
    """
    return ", ".join(
        dict.fromkeys(
            fact.guard if fact.is_guard else f"foreign key {fact.name}"
            for fact in facts
            if fact.is_guard or (fact.what == "foreign key from elsewhere" and _ACTION.search(fact.value))
        )
    )


def _refused(fact: Fact) -> str | None:
    match fact.what, fact.value:
        case "kind", "f":
            return (
                f"{fact.table} is a foreign table, which commits apart from the batch: after a failure between "
                f"the two commits its rows would be there twice. Use local tables; move data elsewhere afterwards."
            )
        case "kind", kind if kind in _KINDS:
            return f"{fact.table} is {_KINDS[kind]}, not a table. Give the pipeline another target."
        case "persistence", "u":
            return (
                f"{fact.table} is unlogged: a crash of Postgres empties it, while the ledger says that its rows "
                f"are committed. Make it a logged one: alter table {fact.table} set logged;"
            )
        case "persistence", "t":
            return f"{fact.table} is a temporary table, which ends with its session. Use a permanent one."
        case "row security", "on":
            return (
                f"row security is on for {fact.table} and applies to this login: a policy could hide rows from a "
                f"replay, or leave out what is written. Let the login own the table or give it the attribute "
                f"bypassrls, or switch it off: alter table {fact.table} disable row level security;"
            )
        case "inheritance", role:
            return (
                f"{fact.table} has the inheritance {role} {fact.name}: rows of "
                f"one table would show in the other. Use declarative partitioning, or end it: "
                f"alter table {fact.name if role == 'child' else fact.table} no inherit "
                f"{fact.table if role == 'child' else fact.name};"
            )
    return None


def _by_key(facts: Iterable[Fact]) -> Mapping[tuple[str, str, str], Fact]:
    return {(fact.table, fact.what, fact.name): fact for fact in facts}


_PSYCOPG2: Final = FACTS_OF.replace("%", "%%").format("%s", "%s")
