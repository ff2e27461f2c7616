"""An alias for a row as a whole. No column has it: where both exist, Postgres takes a bare name for the column."""

from typing import Final

from psycopg2 import sql

ROW: Final = sql.Identifier("exactbatch row")
