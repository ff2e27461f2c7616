"""The SQL in the documentation runs on a ledger; support.documentation says how a page marks a fragment."""

import psycopg2

from support.documentation import blocks

# The tables that pages write about, with the columns that they name.
LINEAGE = (
    "kafka_topic text, kafka_partition int, kafka_offset bigint, kafka_timestamp timestamptz, batch_id bigint"
)
TABLES = f"""
create table public.flight (carrier text, delay int, {LINEAGE});
create table public.flight_trial (carrier text, delay int, {LINEAGE});
create table public.customer (id int primary key, name text);
create table public.customer_change (id int, name text, deleted boolean, {LINEAGE});
create table public.event (id int, name text, {LINEAGE});
create table public.event_old (id int, name text, part int, pos bigint);
"""


def test_the_sql_of_all_pages_runs(connection):
    """One database serves all blocks. What a block does is rolled back, unless it commits itself."""
    failed = {}
    with connection.cursor() as cursor:
        cursor.execute(TABLES)
        connection.commit()
        for block in blocks("sql"):
            try:
                cursor.execute(block.code)
            except psycopg2.Error as error:
                failed[str(block)] = str(error)
            connection.rollback()
    assert not failed
