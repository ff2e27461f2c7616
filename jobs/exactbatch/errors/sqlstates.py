"""What an SQLSTATE means for a batch: whether to try again, what happened in plain words, and what to do.

The codes and their classes are those of Postgres' documentation, appendix A, "PostgreSQL Error Codes"
(https://www.postgresql.org/docs/current/errcodes-appendix.html). A code is looked up by itself, then by its class,
its first two characters.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from exactbatch.errors import (
    ConfigurationError,
    ExactbatchError,
    PostgresUnavailable,
    StagedRowsDiffer,
    StatementRefused,
)

INSUFFICIENT_PRIVILEGE: Final = "42501"
UNDEFINED_TABLE: Final = "42P01"
_STAGING: Final = "exactbatch_staging"
_QUERY_WAIT: Final = "query_wait_timeout"
_POLICY: Final = "row-level security"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an SQLSTATE means.

    error    what is raised; it says whether trying again can help
    what     what happened; the server's own words follow it
    remedy   what to do
    ended    whether the session ended with it, so that nobody knows the outcome of a COMMIT that was under way
    """

    error: type[ExactbatchError]
    what: str
    remedy: str
    ended: bool = False


_SEE_LOG: Final = "See the server's log, and its disks; then try again."
LOST: Final = Meaning(
    PostgresUnavailable,
    "the connection to Postgres was lost",
    "The server's log says why, where the server ended it.",
    ended=True,
)
_OWN_TROUBLE: Final = Meaning(PostgresUnavailable, "Postgres met an error of its own", _SEE_LOG)
_NO_ROOM: Final = Meaning(
    PostgresUnavailable, "the server has no room", "Give the server room, then try again."
)
_ROLLED_BACK: Final = Meaning(
    PostgresUnavailable, "Postgres rolled the transaction back because of other transactions", "Try again."
)
_CREATED: Final = Meaning(
    PostgresUnavailable, "another session has created the same meanwhile", "Try again: it is found then."
)
_NO_LOGIN: Final = Meaning(
    ConfigurationError,
    "Postgres does not let this login in",
    "Check user and password in the connection string (EXACTBATCH_POSTGRES, or Airflow's postgres_default), and "
    "the server's pg_hba.conf.",
)
_NO_DATABASE: Final = Meaning(
    ConfigurationError,
    "there is no such database",
    "Check the connection string (EXACTBATCH_POSTGRES, or Airflow's postgres_default).",
)
_BAD_DATA: Final = Meaning(
    StatementRefused,
    "the statement met a value that it cannot take",
    "Correct the target or its triggers and functions, or what the pipeline writes.",
)
_CONSTRAINT: Final = Meaning(
    StatementRefused,
    "a constraint refuses what the statement writes",
    "Correct the constraint, or what the pipeline writes. Was a table of the schema exactbatch changed by hand? "
    "`exactbatch audit` compares it with the log.",
)
_STATEMENT: Final = Meaning(
    StatementRefused,
    "Postgres cannot carry out the statement on these tables, columns or functions",
    "Were they changed, or the tables of the schema exactbatch? Change them back, or correct the target's "
    "triggers and functions.",
)
_RAISED: Final = Meaning(
    StatementRefused,
    "a trigger or function raised an error",
    "Correct the trigger or function, or what the pipeline writes.",
)
_LIMIT: Final = Meaning(
    StatementRefused,
    "a limit of Postgres is exceeded",
    "Postgres' documentation, appendix K, lists them: fewer columns, smaller values or smaller batches.",
)
_STATE: Final = Meaning(
    StatementRefused,
    "an object is not in the state that the statement needs",
    "Bring it into that state. Where a publication needs a replica identity: give the table a primary key, or "
    "`alter table … replica identity full`.",
)
_UNSUPPORTED: Final = Meaning(
    StatementRefused,
    "Postgres, or what stands in its place, does not support the statement",
    "Choose another kind of target, or a server that supports it.",
)
_SESSION_STATE: Final = Meaning(
    StatementRefused,
    "the statement does not fit the state of its session or transaction",
    "Does a pooler hand one session to several clients? Use its session pooling, or connect to the server itself.",
)
_FOREIGN: Final = Meaning(
    StatementRefused,
    "a foreign data wrapper refuses the statement",
    "Correct the foreign table, or keep it out of the target's triggers.",
)
_FOREIGN_AWAY: Final = Meaning(
    PostgresUnavailable, "a foreign server cannot be reached, or has no room", "Try again."
)
# Most are those of a user's own `raise … using errcode`, which raises it again on each try.
UNLISTED: Final = Meaning(
    StatementRefused,
    "Postgres answered with an error that its documentation does not list",
    "Correct what raises it: a trigger, a function, an extension, or a server that is no Postgres.",
)
# ADBC tells no SQLSTATE of some errors. They may be any, so that none is taken for one that stays.
UNTOLD: Final = Meaning(
    PostgresUnavailable, "Postgres did not carry out a statement", "See the server's log; then try again."
)
_STAGING_GONE: Final = Meaning(
    StagedRowsDiffer,
    "a staging table is gone: this launch lost its connection, and another one dropped the table as a leftover",
    "The retry reads the same ranges again.",
)

_HIDDEN: Final = Meaning(
    ConfigurationError,
    "row security would hide rows from this login",
    "Let it own the table, or give it bypassrls: what a policy hides can be neither counted nor taken back.",
)

# As PgBouncer says it. Neither psycopg2 nor ADBC has an SQLSTATE for it.
_POOL_FULL: Final = Meaning(
    PostgresUnavailable,
    "the pooler had no connection to give within its query_wait_timeout",
    "Raise the pooler's default_pool_size (docs/poolers.md says how many connections a batch has), or run fewer "
    "tasks at once; then try again.",
    ended=True,
)

# By code, or by class.
MEANINGS: Final[Mapping[str, Meaning]] = {
    "03": _SESSION_STATE,
    "08": LOST,
    "09": _RAISED,
    "0A": _UNSUPPORTED,
    "0B": _SESSION_STATE,
    "0L": _STATEMENT,
    "0P": _NO_LOGIN,
    "0Z": _RAISED,
    "20": _RAISED,
    "21": _STATEMENT,
    "22": _BAD_DATA,
    "23": _CONSTRAINT,
    "24": _SESSION_STATE,
    "25": _SESSION_STATE,
    "25006": Meaning(
        PostgresUnavailable,
        "the server is a standby, or closed to writes",
        "Let the connection string name the primary (target_session_attrs=read-write), or open the server again; "
        "then try again.",
    ),
    "25P03": Meaning(
        PostgresUnavailable,
        "Postgres ended the session, which sat idle in its transaction for longer than "
        "idle_in_transaction_session_timeout",
        "The timeout is the pipeline's publish_timeout: was the driver stopped, or its machine too busy?",
        ended=True,
    ),
    "25P04": Meaning(
        PostgresUnavailable,
        "Postgres ended the session, whose transaction took longer than transaction_timeout",
        "Raise or clear that setting for this login, or set limits for smaller batches.",
        ended=True,
    ),
    "26": _SESSION_STATE,
    "27": _RAISED,
    "28": _NO_LOGIN,
    "2B": _STATEMENT,
    "2D": _RAISED,
    "2F": _RAISED,
    "34": _SESSION_STATE,
    "38": _RAISED,
    "39": _RAISED,
    "3B": _SESSION_STATE,
    "3D": _NO_DATABASE,
    "3F": _STATEMENT,
    "40": _ROLLED_BACK,
    "40003": LOST,
    "40P01": Meaning(
        PostgresUnavailable,
        "a deadlock with another session, which Postgres ended by rolling this transaction back",
        "Try again; if it comes back, find what else writes into the target and let it lock fewer rows at a time.",
    ),
    "42": _STATEMENT,
    INSUFFICIENT_PRIVILEGE: Meaning(
        ConfigurationError,
        "a privilege is missing",
        "docs/roles.sql grants what each role needs; those on targets are yours to grant.",
    ),
    "42P06": _CREATED,
    "42P07": _CREATED,
    "44": _CONSTRAINT,
    "53": _NO_ROOM,
    "53300": Meaning(
        PostgresUnavailable,
        "the server has no session left to give",
        "Raise its max_connections, or the connection limit of the role or database, or run fewer tasks at once; "
        "then try again.",
    ),
    "54": _LIMIT,
    "55": _STATE,
    "55P03": Meaning(
        PostgresUnavailable,
        "a lock was not granted within the publish_timeout, because another transaction holds it",
        "Try again; pg_locks and pg_stat_activity show who holds it.",
    ),
    "57": Meaning(PostgresUnavailable, "an operator has intervened", "Try again."),
    "57014": Meaning(
        PostgresUnavailable,
        "a statement was cancelled: it took longer than the statement_timeout, or somebody cancelled it",
        "See in pg_stat_activity what holds the server up, or raise the statement_timeout, or set limits for "
        "smaller batches; then try again.",
    ),
    "57P01": LOST,
    "57P02": LOST,
    "57P03": Meaning(PostgresUnavailable, "Postgres is starting or stopping", "Try again once it is up."),
    "57P04": _NO_DATABASE,
    "57P05": Meaning(
        PostgresUnavailable,
        "Postgres ended the session, which sat idle for longer than idle_session_timeout",
        "Clear that setting for this login: alter role … set idle_session_timeout = 0.",
        ended=True,
    ),
    "58": _OWN_TROUBLE,
    "72": _ROLLED_BACK,
    "F0": _OWN_TROUBLE,
    "HV": _FOREIGN,
    "HV001": _FOREIGN_AWAY,
    "HV00N": _FOREIGN_AWAY,
    "P0": _RAISED,
    "XX": _OWN_TROUBLE,
}

# What servers say, in English, to those whom they do not let in: libpq tells no SQLSTATE of it.
_CONNECTING: Final = (
    ("28P01", re.compile(r"password authentication failed|no password supplied")),
    ("28000", re.compile(r"authentication failed|no pg_hba\.conf entry|pg_hba\.conf rejects")),
    ("28000", re.compile(r'role ".*" does not exist|role ".*" is not permitted to log in')),
    ("3D000", re.compile(r'database ".*" does not exist')),
    (INSUFFICIENT_PRIVILEGE, re.compile(r"permission denied (for database|to set parameter)")),
    ("53300", re.compile(r"too many clients already|remaining connection slots|too many connections for")),
    ("57P03", re.compile(r"the database system is (starting|shutting|in recovery|not yet)")),
)
_PLACE: Final = "connection to server "


def meaning(sqlstate: str) -> Meaning:
    """What a code means: by itself, or else by its class."""
    return MEANINGS.get(sqlstate) or MEANINGS.get(sqlstate[:2]) or UNLISTED


def refuses(sqlstate: str | None) -> bool:
    """Whether the server refuses what the statement writes: a trouble of its own, or a lost session, does not."""
    return sqlstate is not None and (
        sqlstate == INSUFFICIENT_PRIVILEGE or meaning(sqlstate).error is StatementRefused
    )


def refused(sqlstate: str | None, said: str, *, where: str = "", lost: bool = True) -> ExactbatchError:
    """The error for what the server said under an SQLSTATE.

    Without an SQLSTATE it is a lost connection or, where `lost` is False, any error. `where` comes first: the
    batch, range, target or login.
    """
    if _QUERY_WAIT in said:
        found = _POOL_FULL
    elif sqlstate is None:
        found = LOST if lost else UNTOLD
    elif sqlstate == UNDEFINED_TABLE and _STAGING in said:
        found = _STAGING_GONE
    elif sqlstate == INSUFFICIENT_PRIVILEGE and _POLICY in said:
        found = _HIDDEN
    else:
        found = meaning(sqlstate)
    outcome = (
        "The next try finds in the ledger whether the transaction was committed."
        if found.ended
        else "This transaction wrote nothing."
    )
    code = "" if sqlstate is None else f" (SQLSTATE {sqlstate})"
    start = f"{where}: " if where else ""
    return found.error(f"{start}{found.what}: {said}{code}. {outcome} {found.remedy}", sqlstate=sqlstate)


def not_let_in(said: str, *, where: str = "") -> ExactbatchError:
    """The error for what libpq says where no session came about.

    It is terminal where every host of the connection string refuses this very login, database or setting.
    """
    if _QUERY_WAIT in said:
        return refused(None, said, where=where)
    start = f"{where}: " if where else ""
    answers = said.split(_PLACE)[1:] or [said]
    found = [_sqlstate_of(answer) for answer in answers]
    codes = [code for code in found if code is not None]
    if len(codes) == len(found):
        # Where one of the hosts may let it in later, its answer is the one that counts.
        code = next((code for code in codes if meaning(code).error.retryable), codes[0])
        known = meaning(code)
        return known.error(f"{start}{known.what}: {said} (SQLSTATE {code}). {known.remedy}", sqlstate=code)
    return PostgresUnavailable(
        f"{start}expected Postgres to accept a connection, found: {said}. Check the connection string "
        f"(EXACTBATCH_POSTGRES, or Airflow's postgres_default) and that the server is up."
    )


def _sqlstate_of(said: str) -> str | None:
    return next((code for code, pattern in _CONNECTING if pattern.search(said)), None)
