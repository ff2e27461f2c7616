"""The account that runs Postgres, which refuses to run as root."""

import os
import pwd
import shutil
from collections.abc import Sequence
from pathlib import Path

from exactbatch.local.stack_error import LocalStackError

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


def as_account(account: pwd.struct_passwd | None, command: Sequence[str | Path]) -> list[str | Path]:
    """Return the command that root runs to run another one as an account; without an account, the command itself.

    Only root may enter the folders of its stack. So that Postgres enters them, too, it keeps root's right to pass
    through any folder, and no folder is opened to other accounts. Raises LocalStackError without setpriv.
    """
    if account is None:
        return list(command)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise LocalStackError(
            "Postgres refuses to run as root, and setpriv, which runs it as another account, is not on PATH. Install "
            "util-linux, or run as another user."
        )
    right = "dac_override"  # not dac_read_search, which would suffice: root in a container lacks it
    # Without it, access(2) ignores the right, and initdb finds that it may not execute what is below /root.
    kept = "--securebits=+no_setuid_fixup"
    return [
        setpriv,
        *(f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"),
        *(kept, f"--inh-caps=+{right}", f"--ambient-caps=+{right}", "--"),
        *command,
    ]
