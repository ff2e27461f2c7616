"""The parent of a target that is partitioned by batch: what it must be, and what keeps rows from being attached."""

from collections.abc import Sequence
from typing import Final

from psycopg2 import sql

from exactbatch.columns import Column
from exactbatch.errors import TargetMismatch
from exactbatch.postgres.catalog import name_triggers
from exactbatch.postgres.connection import Cursor
from exactbatch.postgres.server_version import PUBLISHED_SCHEMAS, Since
from exactbatch.sinks.tables.target import TargetTable

PARTITION_BY: Final = "partition by range (batch_id)"
_PARENT: Final = """
select c.relkind = 'p' as is_partitioned,
       p.partstrat = 'r' and p.partnatts = 1 and a.attname = 'batch_id' as is_by_batch,
       nullif(p.partdefid, 0)::regclass::text as default_partition,
       pg_has_role(c.relowner, 'usage') as is_owner, quote_ident(pg_get_userbyid(c.relowner)) as owner,
       has_schema_privilege(c.relnamespace, 'create') as may_create, quote_ident(current_user) as login,
       has_schema_privilege(c.relowner, c.relnamespace, 'create')
           or (select rolsuper from pg_roles where rolname = current_user) as may_own
from pg_class c
left join pg_partitioned_table p on p.partrelid = c.oid
left join pg_attribute a on a.attrelid = c.oid and a.attnum = p.partattrs[0]
where c.oid = %s::regclass
"""
# Publications that include the table, whether partitions go by the parent's name, and whether they list the table
# itself rather than its schema or all tables.
_OF_SCHEMAS: Final = sql.SQL("""
   or exists (select from pg_publication_namespace s where s.pnpubid = p.oid and s.pnnspid = c.relnamespace)""")
_PUBLICATIONS: Final = sql.SQL("""
select p.pubname::text, p.pubviaroot,
       exists (select from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = c.oid) as is_listed
from pg_publication p join pg_class c on c.oid = %s::regclass
where p.puballtables
   or exists (select from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = c.oid){of_schemas}
order by 1
""").format(of_schemas=Since(PUBLISHED_SCHEMAS, _OF_SCHEMAS, sql.SQL("")))
_IDENTITY: Final = """
select attname::text from pg_attribute
where attrelid = %s::regclass and attnum > 0 and not attisdropped and attidentity <> '' order by attnum limit 1
"""
_CONSTRAINTS: Final = """
select conname::text, case contype when 'f' then 'foreign key' else 'exclusion constraint' end
from pg_constraint where conrelid = %s::regclass and contype in ('f', 'x') order by 1 limit 1
"""


def check_not_by_batch(cursor: Cursor, table: TargetTable) -> None:
    """Raise TargetMismatch if an existing table is partitioned by ranges of batch IDs."""
    cursor.execute(_PARENT, (table.identifier.as_string(cursor),))
    if cursor.fetchone().is_by_batch:
        raise TargetMismatch(
            f"target {table.spec}: the table is partitioned by range (batch_id), so a batch needs a partition for its "
            f"rows. Nothing was written. Let the pipeline create it: Append({table.spec!r}, layout='by_batch')."
        )


def check_parent(cursor: Cursor, table: TargetTable) -> None:
    """Raise TargetMismatch unless batches can become partitions of an existing table."""
    cursor.execute(_PARENT, (table.identifier.as_string(cursor),))
    parent = cursor.fetchone()
    where = f"target {table.spec}"
    if not parent.is_by_batch:
        kind = "is partitioned otherwise" if parent.is_partitioned else "is not partitioned"
        raise TargetMismatch(
            f"{where}: layout='by_batch' needs a table that is partitioned by range (batch_id), and this one {kind}. "
            f"Nothing was written. Leave out layout, or let exactbatch create another target: the layout of a table "
            f"with rows does not change. `exactbatch explain layouts` shows how to move the rows."
        )
    if parent.default_partition is not None:
        raise TargetMismatch(
            f"{where}: it has the default partition {parent.default_partition}. Each new partition would wait for its "
            f"readers, and scan it. Nothing was written. Detach it: alter table {table.spec} detach partition "
            f"{parent.default_partition};"
        )
    if not parent.is_owner:
        raise TargetMismatch(
            f"{where}: the login {parent.login} does not own it, and only its owner, {parent.owner}, and members of "
            f"that role may attach partitions. Nothing was written. Grant the role: grant {parent.owner} to "
            f"{parent.login}; or make the login the owner."
        )
    if not parent.may_create:
        schema = table.name[0]
        raise TargetMismatch(
            f"{where}: the login {parent.login} may not create tables in the schema {schema}, where the partitions "
            f"belong. Nothing was written. As its owner: grant create on schema {schema} to {parent.login};"
        )
    if not parent.may_own:
        schema = table.name[0]
        raise TargetMismatch(
            f"{where}: its owner, {parent.owner}, may not create tables in the schema {schema}, and each partition is "
            f"to belong to that role. Nothing was written. As the schema's owner: grant create on schema {schema} to "
            f"{parent.owner};"
        )
    for name, is_via_root, _ in publications(cursor, table):
        if not is_via_root:
            raise TargetMismatch(
                f"{where}: the publication {name} replicates partitions under their own names, and a subscriber "
                f"has no partitions of batches to come. Nothing was written. Let it use the target's name: "
                f"alter publication {name} set (publish_via_partition_root = true);"
            )


def publications(cursor: Cursor, table: TargetTable) -> list[tuple[str, bool, bool]]:
    """Return the publications that include a table: name, whether partitions go by the name of their parent, and
    whether it lists the table itself."""
    cursor.execute(_PUBLICATIONS, (table.identifier.as_string(cursor),))
    return [tuple(row) for row in cursor.fetchall()]


def attach_obstacle(cursor: Cursor, table: TargetTable, columns: Sequence[Column]) -> str | None:
    """Return why rows with these columns cannot be copied into a partition before it is attached; None if they can."""
    stored = table.columns(cursor)
    for column in columns:
        # Binary COPY does not cast: into another type it could write another value.
        if not column.type == column.staged_type == stored[column.name].type:
            return (
                f"the column {column.name} is {stored[column.name].type} in the target, and its values are staged as "
                f"{column.staged_type}"
            )
    if triggers := name_triggers(table.facts(cursor)):
        return f"{triggers} would not see the rows"
    parameters = (table.identifier.as_string(cursor),)
    cursor.execute(_IDENTITY, parameters)
    if (row := cursor.fetchone()) is not None:
        return f"the column {row[0]} is an identity column, which only the target's own inserts fill"
    cursor.execute(_CONSTRAINTS, parameters)
    if (row := cursor.fetchone()) is not None:
        return f"the {row[1]} {row[0]} is checked row by row"
    for name, *_ in publications(cursor, table):
        return f"the publication {name} does not replicate rows that are attached"
    cursor.execute("select current_setting('track_counts')")
    if cursor.fetchone()[0] != "on":
        return "Postgres does not count the rows that arrive (track_counts is off)"
    return None
