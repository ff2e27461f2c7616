"""The SQL in the documentation runs on a ledger; support.documentation says how a page marks a fragment."""

import psycopg2

from support.documentation import blocks

# The tables that pages write about.
TABLES = """
create table public.flight (carrier text, batch_id bigint);
create table public.customer_change (id int, kafka_topic text, kafka_partition int, kafka_offset bigint,
    kafka_timestamp timestamptz);
"""


def test_the_sql_of_all_pages_runs(connection):
    """One database serves all blocks: each runs in a transaction that is rolled back."""
    failed = {}
    for block in blocks("sql"):
        with connection.cursor() as cursor:
            cursor.execute(TABLES)
            try:
                cursor.execute(block.code)
            except psycopg2.Error as error:
                failed[str(block)] = str(error)
        connection.rollback()
    assert not failed
