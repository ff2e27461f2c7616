"""Every server setting that can change a value, a wait or a result, with its value and why; and what to say of a
session that has another one.

A role, a database, the environment (PGOPTIONS, PGTZ, PGDATESTYLE, PGCLIENTENCODING), another client of a pooler
and a user's own function can all change what a session does. So each setting goes to the server twice: as a
startup option, which beats what the role and the database say, and by `set local` at the beginning of each
transaction, which holds behind a pooler that drops startup options, and leaves nothing behind on a pooled
connection. docs/settings.md has the same table for users, and says what is left alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from exactbatch.errors import ConfigurationError

_OFF: Final = "0"  # of a timeout
_SPACE: Final = "\\ "  # in libpq's `options`


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting by its name and value as pg_settings has them, and one line about why it matters.

    `scope` is "transaction" for what is set at the beginning of each, "session" for what counts outside of them,
    too, so that a startup option alone can set it, and "server" for what a login cannot set, or not by an option:
    it is asked for only. `since` is the first version of Postgres that has it, `remedy` what an administrator does
    about another value.
    """

    name: str
    value: str
    why: str
    scope: Literal["transaction", "session", "server"] = "transaction"
    since: int = 0
    remedy: str = ""


_FIXED: Final = (
    Setting("transaction_isolation", "read committed", "a statement sees what the lock was waited for"),
    Setting("TimeZone", "UTC", "text without an offset, timetz, date_trunc and casts to date depend on it"),
    Setting("timezone_abbreviations", "Default", "which offset EST or IST in a text stands for"),
    Setting("DateStyle", "ISO, YMD", "whether 01/02/2026 is in January or February"),
    Setting("IntervalStyle", "postgres", "the sign of the second field of '-1 day 02:03'"),
    Setting("extra_float_digits", "1", "text of real and double precision is exact"),
    Setting("bytea_output", "hex", "text of bytea"),
    Setting("array_nulls", "on", "whether NULL in the text of an array is a null or a word"),
    Setting("xmloption", "content", "which text is valid xml"),
    Setting("standard_conforming_strings", "on", "what a backslash in a literal means"),
    Setting("transform_null_equals", "off", "what `= null` means"),
    Setting(
        "gin_fuzzy_search_limit", "0", "with a limit a GIN index gives some of the rows, and any of them"
    ),
    Setting("row_security", "off", "a statement that a policy would filter is an error, not fewer rows"),
    Setting(
        "default_table_access_method", "heap", "tables that exactbatch creates are updated and deleted from"
    ),
    Setting("exit_on_error", "off", "an error ends its transaction, not the session"),
    Setting("transaction_timeout", _OFF, "it would end a COPY in the middle of a big range", since=170000),
    Setting(
        "quote_all_identifiers",
        "off",
        "the COPY client does not find its types when their names come in quotes",
        scope="session",
    ),
    Setting(
        "idle_session_timeout",
        _OFF,
        "the driver's connections are idle while executors read",
        scope="session",
    ),
    Setting(
        "client_encoding",
        "UTF8",
        "COPY sends UTF-8; the server would convert it from another encoding",
        scope="server",
        remedy="Let the pooler pass client_encoding on, or set it for the login: "
        "alter role … set client_encoding = 'UTF8'.",
    ),
    Setting(
        "server_encoding",
        "UTF8",
        "a database with another encoding cannot hold every text",
        scope="server",
        remedy="Create one that can, and move the data into it: "
        "create database … encoding 'UTF8' template template0 (with a locale that goes with it).",
    ),
    Setting(
        "session_replication_role",
        "origin",
        "with replica no trigger and no foreign key acts",
        scope="server",
        remedy="A superuser takes it back: alter role … reset session_replication_role (or alter database …).",
    ),
    Setting(
        "zero_damaged_pages",
        "off",
        "rows of a damaged page would vanish without an error",
        scope="server",
        remedy="A superuser takes it back: alter role … reset zero_damaged_pages (or alter database …, "
        "alter system …).",
    ),
    Setting(
        "ignore_checksum_failure",
        "off",
        "damaged rows would be read without an error",
        scope="server",
        remedy="A superuser takes it back: alter role … reset ignore_checksum_failure (or alter database …, "
        "alter system …).",
    ),
)
# For a session that writes temporary tables alone: whoever closes a database to writes means all others.
_TEMPORARY_TABLES: Final = Setting(
    "default_transaction_read_only",
    "off",
    "an audit keeps what it compares in a temporary table",
    scope="session",
)
_TIMEOUTS: Final = {
    "lock_timeout": "how long a statement waits for a lock",
    "statement_timeout": "how long a statement may take",
    "idle_in_transaction_session_timeout": "how long a driver that hangs holds its locks",
}


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of one connection. Times are in milliseconds; 0 is no limit.

    A session that is `read_only` writes temporary tables alone.
    """

    lock_timeout: int
    statement_timeout: int
    idle_in_transaction: int
    read_only: bool = False

    def all(self, version: int) -> list[Setting]:
        """Every setting that a server of this version has, as 180001."""
        times = (self.lock_timeout, self.statement_timeout, self.idle_in_transaction)
        timeouts = [
            Setting(name, str(time), why) for (name, why), time in zip(_TIMEOUTS.items(), times, strict=True)
        ]
        fixed = [setting for setting in _FIXED if setting.since <= version]
        return [*fixed, *([_TEMPORARY_TABLES] if self.read_only else []), *timeouts]

    def options(self) -> str:
        """What goes into libpq's `options`: all that every supported server has."""
        sent = [setting for setting in self.all(0) if setting.scope != "server"]
        return " ".join(f"-c {_at_startup(s.name)}={s.value.replace(' ', _SPACE)}" for s in sent)

    def statements(self, version: int, found: "Found | None" = None) -> str:
        """Statements that set, for the transaction that has just begun, what a transaction can set; with what was
        found of the login, its path and that commits are waited for, too.

        None of them takes a snapshot, so the transaction can still choose its isolation.
        """
        settings = [setting for setting in self.all(version) if setting.scope == "transaction"]
        # Constants and numbers of this module alone.
        local = [f"set local {setting.name} to '{setting.value}'" for setting in settings]
        local.append(f"set local search_path to {found.search_path if found else 'default'}")
        if found and not found.waits_for_commits:
            local.append("set local synchronous_commit to on")
        return "; ".join(local)


_ASKED: Final = "', '".join(
    [*(setting.name for setting in (*_FIXED, _TEMPORARY_TABLES)), *_TIMEOUTS, "synchronous_commit"]
)
# What a session has, and the path on which it looks names up, without schemas that there are not. It is asked
# while that path holds, on which anything may come before pg_catalog.
FOUND: Final = f"""
select s.name, s.setting,
       (select pg_catalog.string_agg(pg_catalog.quote_ident(name), ', ' order by at)
        from pg_catalog.unnest(pg_catalog.current_schemas(false)) with ordinality path (name, at)
        where name operator(pg_catalog.<>) 'pg_catalog')
from pg_catalog.pg_settings s
where s.name operator(pg_catalog.=) any (array['{_ASKED}'])
"""  # noqa: S608 - constants of this module


@dataclass(frozen=True, slots=True)
class Found:
    """What a transaction of a login has: values by name, and the schemas of its path, as SQL has them."""

    values: Mapping[str, str]
    schemas: str | None

    @classmethod
    def of(cls, rows: Sequence[Sequence[str | bytes | None]]) -> "Found":
        """From the rows that FOUND gives; ADBC gives bytes where quote_all_identifiers hides the types from it."""
        texts = [[cell.decode() if isinstance(cell, bytes) else cell for cell in row] for row in rows]
        return cls({str(name): str(setting) for name, setting, _ in texts}, texts[0][2])

    def check(self, settings: Iterable[Setting]) -> None:
        """Raise ConfigurationError, which names the setting and what to do, unless all have their values."""
        for setting in settings:
            if (actual := self.values.get(setting.name)) != setting.value:
                raise ConfigurationError(
                    f"the connection to Postgres has {setting.name} = {actual}, and exactbatch needs "
                    f"{setting.value}: {setting.why}. Nothing was written. {setting.remedy or _dropped(setting)}"
                )

    @property
    def search_path(self) -> str:
        """The login's own path, which users' functions and operators need.

        pg_catalog is not on it: then Postgres looks there first, and creates nothing there.
        """
        return self.schemas or "''"

    @property
    def waits_for_commits(self) -> bool:
        """Whether a commit that is answered survives a crash of the server."""
        return self.values["synchronous_commit"] != "off"


def refused_option(said: str) -> ConfigurationError | None:
    """What to raise when a pooler does not take startup options; None when it said something else."""
    if "unsupported startup parameter" not in said:
        return None
    return ConfigurationError(
        f"a pooler before Postgres, as PgBouncer, refuses the startup parameter `options`, by which exactbatch "
        f"sets its settings ({said}). Set ignore_startup_parameters = options in pgbouncer.ini, or connect to "
        f"Postgres directly. docs/poolers.md has the rest of what a pooler needs."
    )


def milliseconds(seconds: float) -> int:
    """Seconds as a server setting has them; at least 1, because 0 would be no limit."""
    return max(1, round(seconds * 1000))


def _at_startup(name: str) -> str:
    return "default_transaction_isolation" if name == "transaction_isolation" else name


def _dropped(setting: Setting) -> str:
    value = setting.value if setting.value.isalnum() else f"'{setting.value}'"
    return (
        f"It was sent as a startup option, and a pooler has dropped it: PgBouncer does with "
        f"ignore_startup_parameters = options. Set it for the login: alter role … set {setting.name} = {value}; "
        f"or connect to Postgres directly. docs/poolers.md has the rest of what a pooler needs."
    )
