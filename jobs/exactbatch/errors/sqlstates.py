"""The meaning of each SQLSTATE for a batch: what happened, whether a retry can help, and what to do.

The codes and classes are those of the Postgres documentation, appendix A, "PostgreSQL Error Codes"
(https://www.postgresql.org/docs/current/errcodes-appendix.html). A code takes precedence over its class, which is
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
UNDEFINED_COLUMN: Final = "42703"
UNIQUE_VIOLATION: Final = "23505"
EXCLUSION_VIOLATION: Final = "23P01"
FOREIGN_KEY_VIOLATION: Final = "23503"
RESTRICT_VIOLATION: Final = "23001"
# What the ledger raises about rows of pipelines that a transaction, or a login, does not write.
FOREIGN_PIPELINE: Final = "EX001"
FOREIGN_LOGIN: Final = "EX002"
DATA_EXCEPTION: Final = "22"  # the class of errors about a value
LOST_CONNECTION: Final = "08"  # the class of errors about a connection
# A regular expression: errors of the server, the session, a privilege or a missing staging table, not of a value.
NOT_OF_A_VALUE: Final = f"^(08|25|40|53|57|58|XX|{INSUFFICIENT_PRIVILEGE}|{UNDEFINED_TABLE})"
_STAGING: Final = "exactbatch_staging"
_QUERY_WAIT: Final = "query_wait_timeout"
_POLICY: Final = "row-level security"
# The unique indexes of Postgres's own catalog, in a message in any language.
_OF_CATALOG: Final = re.compile(r"\bpg_[a-z_]+_index\b")


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of an SQLSTATE.

    error    the class to raise, which is retryable or not
    what     what happened; the server's own message follows it
    remedy   what to do
    ended    true if the session ended, so that the outcome of a COMMIT in progress is unknown
    """

    error: type[ExactbatchError]
    what: str
    remedy: str
    ended: bool = False


_SEE_LOG: Final = "Check the server's log and its disks, then try again."
LOST: Final = Meaning(
    PostgresUnavailable,
    "the connection to Postgres was lost",
    "If the server closed it, the server's log has the reason.",
    ended=True,
)
_SERVER_ERROR: Final = Meaning(PostgresUnavailable, "Postgres had an internal or system error", _SEE_LOG)
_NO_ROOM: Final = Meaning(
    PostgresUnavailable,
    "the server ran out of disk space, memory or another resource",
    "Free the resource, then try again.",
)
_ROLLED_BACK: Final = Meaning(
    PostgresUnavailable,
    "Postgres rolled the transaction back because of a conflict with other transactions",
    "Try again.",
)
_CREATED: Final = Meaning(
    PostgresUnavailable, "another session created the same object at the same time", "Try again."
)
_NO_LOGIN: Final = Meaning(
    ConfigurationError,
    "Postgres refuses this login",
    "Check the user and the password in the connection string (EXACTBATCH_POSTGRES, or Airflow's postgres_default), "
    "and the server's pg_hba.conf.",
)
_NO_DATABASE: Final = Meaning(
    ConfigurationError,
    "the database does not exist",
    "Check the connection string (EXACTBATCH_POSTGRES, or Airflow's postgres_default).",
)
_BAD_DATA: Final = Meaning(
    StatementRefused,
    "a value is invalid for the statement",
    "Correct the target, its triggers and functions, or the rows that the pipeline writes.",
)
_CONSTRAINT: Final = Meaning(
    StatementRefused,
    "a constraint refuses the rows of the statement",
    "Correct the constraint, or the rows that the pipeline writes. If a table of the schema exactbatch was changed "
    "by hand, `exactbatch audit` compares it with the log.",
)
_STATEMENT: Final = Meaning(
    StatementRefused,
    "Postgres cannot run the statement on these tables, columns or functions",
    "If they were changed, or the tables of the schema exactbatch, change them back; or correct the target's "
    "triggers and functions.",
)
_RAISED: Final = Meaning(
    StatementRefused,
    "a trigger or function raised an error",
    "Correct the trigger or function, or the rows that the pipeline writes.",
)
_LIMIT: Final = Meaning(
    StatementRefused,
    "a limit of Postgres is exceeded",
    "Appendix K of the Postgres documentation lists the limits. Use fewer columns, smaller values or smaller batches.",
)
_STATE: Final = Meaning(
    StatementRefused,
    "an object is not in the state that the statement requires",
    "Bring it into that state. If a publication needs a replica identity, give the table a primary key, or run "
    "`alter table … replica identity full`.",
)
_UNSUPPORTED: Final = Meaning(
    StatementRefused,
    "the server does not support the statement",
    "Choose another kind of target, or a server that supports the statement.",
)
_SESSION_STATE: Final = Meaning(
    StatementRefused,
    "the statement does not fit the state of its session or transaction",
    "If a pooler shares one session among several clients, use its session pooling, or connect to the server directly.",
)
_FOREIGN: Final = Meaning(
    StatementRefused,
    "a foreign data wrapper refuses the statement",
    "Correct the foreign table, or do not use it in the target's triggers.",
)
_FOREIGN_AWAY: Final = Meaning(
    PostgresUnavailable, "a foreign server cannot be reached or is out of memory", "Try again."
)
# Most come from a user's own `raise … using errcode`, which raises the same error on every retry.
UNLISTED: Final = Meaning(
    StatementRefused,
    "Postgres reported an error that its documentation does not list",
    "Correct the trigger, function or extension that raises it; or the server is not Postgres.",
)
# ADBC reports some errors without an SQLSTATE. They can be any error, so they count as retryable.
NO_SQLSTATE: Final = Meaning(
    PostgresUnavailable, "Postgres did not run a statement", "Check the server's log, then try again."
)
_STAGING_GONE: Final = Meaning(
    StagedRowsDiffer,
    "a staging table no longer exists: this launch lost its connection, and another launch dropped its tables",
    "The retry reads the same ranges again.",
)

_HIDDEN: Final = Meaning(
    ConfigurationError,
    "row-level security would hide rows from this login",
    "Make the login the table's owner, or give it bypassrls: rows that a policy hides can be neither counted nor "
    "retracted.",
)

# PgBouncer's message. Neither psycopg2 nor ADBC reports an SQLSTATE for it.
_POOL_FULL: Final = Meaning(
    PostgresUnavailable,
    "the pooler had no free connection within its query_wait_timeout",
    "Raise the pooler's default_pool_size, or run fewer tasks at a time; then try again. `exactbatch explain poolers` "
    "gives the number of connections of a batch.",
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
        "the server is a standby or read-only",
        "Let the connection string name the primary (target_session_attrs=read-write), or make the server writable; "
        "then try again.",
    ),
    "25P03": Meaning(
        PostgresUnavailable,
        "Postgres ended the session, because its transaction was idle for longer than "
        "idle_in_transaction_session_timeout",
        "The timeout is the pipeline's lock_timeout. Check whether the driver was suspended or its machine "
        "overloaded, then try again.",
        ended=True,
    ),
    "25P04": Meaning(
        PostgresUnavailable,
        "Postgres ended the session, because its transaction exceeded transaction_timeout",
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
        "Postgres rolled the transaction back to resolve a deadlock with another session",
        "Try again. If it recurs, find the other program that writes to the target and let it lock fewer rows at a "
        "time.",
    ),
    "42": _STATEMENT,
    INSUFFICIENT_PRIVILEGE: Meaning(
        ConfigurationError,
        "a privilege is missing",
        "The statements of `exactbatch roles` grant what each role needs on the ledger; privileges on targets "
        "are yours to grant.",
    ),
    "42P06": _CREATED,
    "42P07": _CREATED,
    "44": _CONSTRAINT,
    "53": _NO_ROOM,
    "53300": Meaning(
        PostgresUnavailable,
        "the server has no free session",
        "Raise max_connections, or the connection limit of the role or the database, or run fewer tasks at a time; "
        "then try again.",
    ),
    "54": _LIMIT,
    "55": _STATE,
    "55P03": Meaning(
        PostgresUnavailable,
        "a lock was not granted within the lock_timeout, because another transaction holds it",
        "Try again. pg_locks and pg_stat_activity show the session that holds it.",
    ),
    "57": Meaning(PostgresUnavailable, "an administrator intervened", "Try again."),
    "57014": Meaning(
        PostgresUnavailable,
        "a statement exceeded statement_timeout, or an administrator cancelled it",
        "Check pg_stat_activity for what slows the server down, raise the pipeline's statement_timeout, or set limits "
        "for smaller batches; then try again.",
    ),
    "57P01": LOST,
    "57P02": LOST,
    "57P03": Meaning(
        PostgresUnavailable, "Postgres is starting up or shutting down", "Try again when it is up."
    ),
    "57P04": _NO_DATABASE,
    "57P05": Meaning(
        PostgresUnavailable,
        "Postgres ended the session, because it was idle for longer than idle_session_timeout",
        "Clear that setting for this login: alter role … set idle_session_timeout = 0.",
        ended=True,
    ),
    "58": _SERVER_ERROR,
    "72": _ROLLED_BACK,
    FOREIGN_PIPELINE: Meaning(
        StatementRefused,
        "code of the target writes into the ledger",
        "Drop the trigger, default, check, domain or index expression of the target that does this, and ask its owner "
        "why it is there.",
    ),
    FOREIGN_LOGIN: Meaning(
        ConfigurationError,
        "this login is for other pipelines",
        "exactbatch.login_pipeline lists the pipelines that this login may write; `exactbatch explain security` "
        "shows how to add one.",
    ),
    "F0": _SERVER_ERROR,
    "HV": _FOREIGN,
    "HV001": _FOREIGN_AWAY,
    "HV00N": _FOREIGN_AWAY,
    "P0": _RAISED,
    "XX": _SERVER_ERROR,
}

# Of the class 54: too many columns, too many arguments.
_OF_A_DEFINITION: Final = ("54011", "54023")

# Messages, in English, of servers that refuse a connection: libpq reports no SQLSTATE for them.
_CONNECTING: Final = (
    ("28P01", re.compile(r"password authentication failed|no password supplied")),
    ("28000", re.compile(r"authentication failed|no pg_hba\.conf entry|pg_hba\.conf rejects")),
    ("28000", re.compile(r'role ".*" does not exist|role ".*" is not permitted to log in')),
    ("28000", re.compile(r"no such user")),  # PgBouncer's words, and those of its databases
    ("3D000", re.compile(r'database ".*" does not exist')),
    ("3D000", re.compile(r"no such database")),
    (INSUFFICIENT_PRIVILEGE, re.compile(r"permission denied (for database|to set parameter)")),
    ("53300", re.compile(r"too many clients already|remaining connection slots|too many connections for")),
    ("57P03", re.compile(r"the database system is (starting|shutting|in recovery|not yet)")),
)
_PLACE: Final = "connection to server "


def meaning(sqlstate: str) -> Meaning:
    """Return the meaning of a code, or else of its class."""
    return MEANINGS.get(sqlstate) or MEANINGS.get(sqlstate[:2]) or UNLISTED


def is_of_catalog(message: str) -> bool:
    """True if the message of a unique violation is about Postgres's own catalog, not about rows of a table."""
    return _OF_CATALOG.search(message) is not None


def is_refusal(sqlstate: str | None) -> bool:
    """True if the server refuses the rows of a statement; false for an internal error and for a lost session."""
    return sqlstate is not None and (
        sqlstate == INSUFFICIENT_PRIVILEGE or meaning(sqlstate).error is StatementRefused
    )


def is_row_error(sqlstate: str | None) -> bool:
    """True if a row may be the cause of an error: without that row, the statement may succeed."""
    return (
        sqlstate is not None
        and sqlstate not in _OF_A_DEFINITION
        and meaning(sqlstate) in (_BAD_DATA, _CONSTRAINT, _RAISED, _LIMIT, UNLISTED)
    )


def error_for(sqlstate: str | None, message: str, *, where: str = "", lost: bool = True) -> ExactbatchError:
    """Return the error for an SQLSTATE and the server's message.

    Without an SQLSTATE, the connection was lost or, if `lost` is False, the error is unknown. The text begins with
    `where`: the batch, range, target or login.
    """
    if _QUERY_WAIT in message and (sqlstate or LOST_CONNECTION).startswith(LOST_CONNECTION):
        meant = _POOL_FULL  # and not a row with this text
    elif sqlstate is None:
        meant = LOST if lost else NO_SQLSTATE
    elif sqlstate == UNIQUE_VIOLATION and is_of_catalog(message):
        meant = _CREATED
    elif sqlstate == UNDEFINED_TABLE and _STAGING in message:
        meant = _STAGING_GONE
    elif sqlstate == INSUFFICIENT_PRIVILEGE and _POLICY in message:
        meant = _HIDDEN
    else:
        meant = meaning(sqlstate)
    outcome = (
        "The next try finds in the ledger whether the transaction was committed."
        if meant.ended
        else "This transaction wrote nothing."
    )
    code = "" if sqlstate is None else f" (SQLSTATE {sqlstate})"
    start = f"{where}: " if where else ""
    return meant.error(f"{start}{meant.what}: {message}{code}. {outcome} {meant.remedy}", sqlstate=sqlstate)


def connection_error(message: str, *, where: str = "") -> ExactbatchError:
    """Return the error for libpq's message about a session that was not established.

    It is terminal if every host of the connection string refuses this login, database or setting.
    """
    if _QUERY_WAIT in message:
        return error_for(None, message, where=where)
    start = f"{where}: " if where else ""
    codes = [_find_sqlstate(answer) for answer in message.split(_PLACE)[1:] or [message]]
    known = [code for code in codes if code is not None]
    if len(known) == len(codes):
        # If one of the hosts may accept the login later, its answer counts.
        code = next((code for code in known if meaning(code).error.retryable), known[0])
        meant = meaning(code)
        return meant.error(f"{start}{meant.what}: {message} (SQLSTATE {code}). {meant.remedy}", sqlstate=code)
    return PostgresUnavailable(
        f"{start}cannot connect to Postgres: {_sentence(message)} Check the connection string (EXACTBATCH_POSTGRES, "
        f"or Airflow's postgres_default) and that the server is up."
    )


def _sentence(message: str) -> str:
    """Return libpq's message with an end: some of its messages end in a question mark, most in nothing."""
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _find_sqlstate(answer: str) -> str | None:
    return next((code for code, pattern in _CONNECTING if pattern.search(answer)), None)
