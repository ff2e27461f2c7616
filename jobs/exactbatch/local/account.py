"""The account that Postgres runs as: it refuses to run as root."""

import os
import pwd
import stat
from pathlib import Path

from exactbatch.local.errors import LocalStackError
from exactbatch.local.server import Progress

UNPRIVILEGED = "nobody"


def postgres_account() -> pwd.struct_passwd | None:
    """None for the user that runs this process; `nobody` when that user is root.

    Raises LocalStackError when root's machine has no such account.
    """
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(UNPRIVILEGED)
    except KeyError as error:
        raise LocalStackError(
            f"expected an account `{UNPRIVILEGED}`, since Postgres refuses to run as root, found none: "
            "create it, or run as another user"
        ) from error


def hand_over(data_dir: Path, account: pwd.struct_passwd) -> None:
    """Make the data directory, and what is in it, belong to the account."""
    if data_dir.stat().st_uid == account.pw_uid:
        return
    for path in (data_dir, *data_dir.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def let_enter(folder: Path, progress: Progress) -> None:
    """Let other users pass through the parents of a folder, /root for one, without listing them.

    Raises LocalStackError when that is not possible.
    """
    for parent in closed_parents(folder):
        progress(f"letting other users pass through {parent} (o+x): Postgres cannot run as root")
        try:
            parent.chmod(stat.S_IMODE(parent.stat().st_mode) | stat.S_IXOTH)
        except OSError as error:
            raise LocalStackError(
                f"expected {parent} to let `{UNPRIVILEGED}` pass, since Postgres refuses to run as root, "
                f"found it closed ({error.strerror}): move the checkout, for example below /srv, "
                "or run as another user"
            ) from error


def closed_parents(folder: Path) -> list[Path]:
    """The parents of a folder that others cannot pass through, from the root down."""
    parents = reversed(folder.resolve().parents)
    return [parent for parent in parents if not parent.stat().st_mode & stat.S_IXOTH]
