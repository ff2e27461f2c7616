"""Every server setting that can change a value, a wait or a result, with its value and the reason for it.

A role, a database, the environment (PGOPTIONS, PGTZ, PGDATESTYLE, PGCLIENTENCODING), another client of a pooler
and a user's own function can all change how a session behaves. Each setting therefore goes to the server twice: as
a startup option, which overrides the settings of the role and the database, and by `set local` at the beginning of
each transaction, which also takes effect behind a pooler that drops startup options and leaves nothing behind on a
pooled connection. docs/settings.md shows the values.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from exactbatch.errors import ConfigurationError

_OFF: Final = "0"  # turns a timeout off
_SPACE: Final = "\\ "  # in libpq's `options`
_REFUSED_OPTIONS: Final = re.compile(
    r"unsupported startup parameter|(command-line|startup) options? (is|are) not|n.t support command-line options"
)
_UNKNOWN_PARAMETER: Final = re.compile(r'unrecognized configuration parameter "([^"]+)"')


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: its name and value as in pg_settings, and one line on why it matters.

    scope    "transaction": set at the beginning of each transaction. "session": also matters outside of transactions,
             so only a startup option can set it. "server": a login cannot set it, or not by an option, so it is only
             checked
    since    the first version of Postgres that has it, such as 170000
    remedy   what an administrator does about another value
    """

    name: str
    value: str
    why: str
    scope: Literal["transaction", "session", "server"] = "transaction"
    since: int = 0
    remedy: str = ""


_FIXED: Final = (
    Setting(
        "transaction_isolation",
        "read committed",
        "after waiting for a lock, a statement sees what the lock holder committed",
    ),
    Setting("TimeZone", "UTC", "it affects text without an offset, timetz, date_trunc and casts to date"),
    Setting("timezone_abbreviations", "Default", "the offset that EST or IST stands for in text"),
    Setting("DateStyle", "ISO, YMD", "whether 01/02/2026 is in January or February"),
    Setting("IntervalStyle", "postgres", "the sign of the second field of '-1 day 02:03'"),
    Setting("extra_float_digits", "1", "text of real and double precision is exact"),
    Setting("bytea_output", "hex", "text of bytea"),
    Setting("array_nulls", "on", "whether NULL in the text of an array is a null or a word"),
    Setting("xmloption", "content", "which text is valid xml"),
    Setting("standard_conforming_strings", "on", "what a backslash in a literal means"),
    Setting("transform_null_equals", "off", "what `= null` means"),
    Setting(
        "gin_fuzzy_search_limit", "0", "with a limit, a GIN index returns an arbitrary subset of the rows"
    ),
    Setting(
        "row_security",
        "off",
        "a statement that a policy would filter raises an error instead of returning fewer rows",
    ),
    Setting(
        "default_table_access_method",
        "heap",
        "exactbatch updates, and deletes from, the tables that it creates",
    ),
    Setting("exit_on_error", "off", "an error ends its transaction, not the session"),
    Setting("transaction_timeout", _OFF, "it would end a COPY in the middle of a large range", since=170000),
    Setting(
        "quote_all_identifiers",
        "off",
        "the COPY client cannot find its types if their names are quoted",
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
        "COPY sends UTF-8; the server would convert it from any other encoding",
        scope="server",
        remedy="Let the pooler forward client_encoding, or set it for the login: "
        "alter role … set client_encoding = 'UTF8'.",
    ),
    Setting(
        "server_encoding",
        "UTF8",
        "a database with another encoding cannot hold every text",
        scope="server",
        remedy="Create a UTF8 database and move the data: "
        "create database … encoding 'UTF8' template template0 (with a matching locale).",
    ),
    Setting(
        "session_replication_role",
        "origin",
        "with replica, triggers and foreign keys have no effect",
        scope="server",
        remedy="A superuser can reset it: alter role … reset session_replication_role (or alter database …).",
    ),
    Setting(
        "zero_damaged_pages",
        "off",
        "rows of a damaged page would disappear without an error",
        scope="server",
        remedy="A superuser can reset it: alter role … reset zero_damaged_pages (or alter database …, "
        "alter system …).",
    ),
    Setting(
        "ignore_checksum_failure",
        "off",
        "damaged rows would be read without an error",
        scope="server",
        remedy="A superuser can reset it: alter role … reset ignore_checksum_failure (or alter database …, "
        "alter system …).",
    ),
)
# For a session that writes only temporary tables: a database that is set read-only can still be audited.
_TEMPORARY_TABLES: Final = Setting(
    "default_transaction_read_only",
    "off",
    "an audit stores what it compares in a temporary table",
    scope="session",
)
_TIMEOUTS: Final = {
    "lock_timeout": "how long a statement waits for a lock",
    "statement_timeout": "how long a statement may take",
    "idle_in_transaction_session_timeout": "how long a hanging driver keeps its locks",
}


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of one connection. Times are in milliseconds; 0 is no limit.

    A `read_only` session writes only temporary tables.
    """

    lock_timeout: int
    statement_timeout: int
    idle_in_transaction: int
    read_only: bool = False

    def all(self, version: int) -> list[Setting]:
        """Return every setting that a server of this version has; 180001 is Postgres 18.1."""
        times = (self.lock_timeout, self.statement_timeout, self.idle_in_transaction)
        timeouts = [
            Setting(name, str(time), why) for (name, why), time in zip(_TIMEOUTS.items(), times, strict=True)
        ]
        fixed = [setting for setting in _FIXED if setting.since <= version]
        return [*fixed, *([_TEMPORARY_TABLES] if self.read_only else []), *timeouts]

    def options(self) -> str:
        """Return the value of libpq's `options`: the settings that every supported server has."""
        sent = [setting for setting in self.all(0) if setting.scope != "server"]
        return " ".join(f"-c {_at_startup(s.name)}={s.value.replace(' ', _SPACE)}" for s in sent)

    def statements(self, version: int, effective: "EffectiveSettings | None" = None) -> str:
        """Return the statements that pin the settings of a transaction that has just begun.

        The search path is OWN_PATH; without `effective`, it is the login's, which EFFECTIVE_SETTINGS reads. With
        `effective`, they also pin that a commit waits until it is on disk. None of them takes a snapshot, so the
        transaction can still choose its isolation level.
        """
        settings = [setting for setting in self.all(version) if setting.scope == "transaction"]
        # The texts are constants and numbers of this module.
        local = [f"set local {setting.name} to '{setting.value}'" for setting in settings]
        local.append(OWN_PATH if effective else "set local search_path to default")
        if effective and not effective.waits_for_commits:
            local.append("set local synchronous_commit to on")
        return "; ".join(local)


# The path of all statements but those over targets. On any other, a function or operator that somebody has created for
# the very types of its arguments would take the place of Postgres's own, which takes them after a conversion. Postgres
# would search pg_temp first if it were not listed.
OWN_PATH: Final = "set local search_path to pg_catalog, pg_temp"


_NAMES: Final = "', '".join(
    [*(setting.name for setting in (*_FIXED, _TEMPORARY_TABLES)), *_TIMEOUTS, "synchronous_commit"]
)
# The settings in effect; the schemas of the login's path that exist, without those where another role may create
# functions and operators, or has created some; and these, with such a role. Trusted are superusers, the login itself
# and the roles that own the schema; but not an owner who has given a schema the name of the login, so that "$user" puts
# it first on the path. A role counts only if another login can act as it. The query runs while the login's path is in
# effect: hence the qualified names and operators.
EFFECTIVE_SETTINGS: Final = f"""
select s.name, s.setting, p.schemas, p.left_out
from pg_catalog.pg_settings s cross join (
    select pg_catalog.string_agg(pg_catalog.quote_ident(path.name), ', ' order by path.at)
               filter (where other.name is null),
           pg_catalog.string_agg(
               pg_catalog.format('%s (role %s)', pg_catalog.quote_ident(path.name), other.name), ', ' order by path.at)
               filter (where other.name is not null)
    from pg_catalog.unnest(pg_catalog.current_schemas(false)) with ordinality path (name, at)
    join pg_catalog.pg_namespace n on n.nspname operator(pg_catalog.=) path.name
    left join lateral (
        select coalesce(pg_catalog.quote_ident(r.rolname), 'public') as name
        from (
            select n.nspowner, false where n.nspname operator(pg_catalog.=) current_user
            union all
            select a.grantee, false from pg_catalog.aclexplode(n.nspacl) a
            where a.privilege_type operator(pg_catalog.=) 'CREATE'
            union all
            select f.proowner, true from pg_catalog.pg_proc f where f.pronamespace operator(pg_catalog.=) n.oid
            union all
            select o.oprowner, true from pg_catalog.pg_operator o where o.oprnamespace operator(pg_catalog.=) n.oid
        ) creator (oid, has_created)
        left join pg_catalog.pg_roles r on r.oid operator(pg_catalog.=) creator.oid
        where r.oid is null
        or r.rolname operator(pg_catalog.<>) current_user and not r.rolsuper
        and (n.nspname operator(pg_catalog.=) current_user or not pg_catalog.pg_has_role(r.oid, n.nspowner, 'member'))
        and (creator.has_created or exists (
            select from pg_catalog.pg_roles login where login.rolcanlogin and not login.rolsuper
            and login.rolname operator(pg_catalog.<>) current_user
            and pg_catalog.pg_has_role(login.oid, r.oid, 'member')))
        limit 1
    ) other on true
    where path.name operator(pg_catalog.<>) 'pg_catalog'
) p (schemas, left_out)
where s.name operator(pg_catalog.=) any (array['{_NAMES}'])
"""  # noqa: S608 - constants of this module


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """The settings in effect in a transaction of a login, by name, and the schemas of its path as SQL text.

    `left_out` are the schemas of the path that are not in `schemas`: each with a role that may create functions there,
    or has done so.
    """

    values: Mapping[str, str]
    schemas: str | None
    left_out: str | None

    @classmethod
    def of(cls, rows: Sequence[Sequence[str | bytes | None]]) -> "EffectiveSettings":
        """Read rows of EFFECTIVE_SETTINGS. ADBC returns bytes where quote_all_identifiers hides the types from it."""
        texts = [[cell.decode() if isinstance(cell, bytes) else cell for cell in row] for row in rows]
        return cls({str(name): str(setting) for name, setting, *_ in texts}, *texts[0][2:])

    def check(self, settings: Iterable[Setting]) -> None:
        """Raise ConfigurationError, which names the setting and the remedy, unless all have their values."""
        for setting in settings:
            if (actual := self.values.get(setting.name)) != setting.value:
                raise ConfigurationError(
                    f"the connection to Postgres has {setting.name} = {actual}, and exactbatch needs "
                    f"{setting.value}: {setting.why}. Nothing was written. {setting.remedy or _dropped(setting)}"
                )

    @property
    def target_path(self) -> str:
        """The statement that sets the path of statements over targets: the login's own, for users' functions, operators
        and types.

        It leaves out pg_catalog, which Postgres then searches first and creates nothing in.
        """
        schemas = self.schemas or "''"
        return f"set local search_path to {schemas}"

    @property
    def waits_for_commits(self) -> bool:
        """True if an acknowledged commit survives a crash of the server."""
        return self.values["synchronous_commit"] != "off"


def names_startup_options(message: str) -> bool:
    """True for the message of a server or pooler that refuses startup options, as PgBouncer and RDS Proxy word it."""
    return _REFUSED_OPTIONS.search(message) is not None


def unknown_parameter(message: str) -> str | None:
    """Return the configuration parameter that a server does not know, from its message; None for another message."""
    found = _UNKNOWN_PARAMETER.search(message)
    return None if found is None else found[1]


def startup_options_refused(message: str) -> ConfigurationError:
    """Return the error for a server or pooler that refuses the options of the user's own connection string."""
    return ConfigurationError(
        f"the server, or a pooler such as PgBouncer in front of it, refuses the `options` of the connection string "
        f"({message}). Remove them, or give the connection the address of Postgres itself. `exactbatch explain "
        f"poolers` lists everything that a pooler needs."
    )


def milliseconds(seconds: float) -> int:
    """Convert seconds to the unit of a server setting; at least 1, because 0 would be no limit."""
    return max(1, round(seconds * 1000))


def _at_startup(name: str) -> str:
    return "default_transaction_isolation" if name == "transaction_isolation" else name


def _dropped(setting: Setting) -> str:
    value = setting.value if setting.value.isalnum() else f"'{setting.value}'"
    return (
        f"No transaction can set it, and a pooler dropped or refused it as a startup option. Set it for the login: "
        f"alter role … set {setting.name} = {value}; or connect to Postgres directly. `exactbatch explain poolers` "
        f"lists everything that a pooler needs."
    )
