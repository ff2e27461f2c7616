"""Passwords of a stack's servers, each in a file that only this user can read."""

import os
import secrets
from pathlib import Path


def new_secret() -> str:
    """Return a random text of letters, digits, - and _."""
    return secrets.token_urlsafe(24)


def write_secret(file: Path, text: str) -> None:
    """Write a file at once, which only this user can read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as output:
        output.write(text)
    draft.replace(file)
