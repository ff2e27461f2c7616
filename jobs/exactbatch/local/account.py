"""The account that runs Postgres, which refuses to run as root."""

import os
import pwd
import stat
from pathlib import Path

from exactbatch.local.errors import LocalStackError
from exactbatch.local.server import Progress

UNPRIVILEGED = "nobody"


def postgres_account() -> pwd.struct_passwd | None:
    """Return the account `nobody` for root, and None for any other user, who can run Postgres.

    Raises LocalStackError if the machine has no such account.
    """
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(UNPRIVILEGED)
    except KeyError as error:
        raise LocalStackError(
            f"Postgres refuses to run as root, and this machine has no account `{UNPRIVILEGED}`. Create it, or run as "
            "another user."
        ) from error


def hand_over(data_dir: Path, account: pwd.struct_passwd) -> None:
    """Make the account the owner of the data directory and of everything in it."""
    if data_dir.stat().st_uid == account.pw_uid:
        return
    for path in (data_dir, *data_dir.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def let_enter(folder: Path, progress: Progress) -> None:
    """Allow other users to pass through the parents of a folder, such as /root, but not to list them.

    Raises LocalStackError if that is not possible.
    """
    for parent in closed_parents(folder):
        progress(f"allowing other users to pass through {parent} (o+x), because Postgres cannot run as root")
        try:
            parent.chmod(stat.S_IMODE(parent.stat().st_mode) | stat.S_IXOTH)
        except OSError as error:
            raise LocalStackError(
                f"Postgres refuses to run as root, and `{UNPRIVILEGED}` cannot pass through {parent} "
                f"({error.strerror}). Move the checkout, for example below /srv, or run as another user."
            ) from error


def closed_parents(folder: Path) -> list[Path]:
    """Return the parents of a folder that other users cannot pass through, from the root down."""
    parents = reversed(folder.resolve().parents)
    return [parent for parent in parents if not parent.stat().st_mode & stat.S_IXOTH]
