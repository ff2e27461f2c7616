"""docs/reference/ledger.md has the ledger's tables as they are after all migrations."""

from support.ledger_page import documented

COLUMNS = """
select c.relname, a.attname, replace(format_type(a.atttypid, a.atttypmod), 'timestamp with time zone', 'timestamptz')
    || case when a.attnotnull then '' else ', *null*' end
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = 'exactbatch'::regnamespace and c.relkind in ('r', 'p')
order by c.relname, a.attnum
"""


def test_the_reference_has_every_table_and_column_with_its_type(connection):
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS)
        real = cursor.fetchall()
    assert sorted(documented("## "), key=lambda each: each[0]) == [tuple(row) for row in real]
