"""Say what a release still lacks, and what to do about it: `make release-check`."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_DEVELOPMENT: Final = ".dev0"


def find_missing(
    version: str, changelog: str, *, tags: Sequence[str], changed: int, holders: Sequence[str]
) -> list[str]:
    """Return what the release of a version lacks, each with what to do, in the order in which to do it. Pure.

    changelog  the text of CHANGELOG.md
    tags       those of the commit that is checked out
    changed    how many files are not committed
    holders    files that hold the version
    """
    release = version.removesuffix(_DEVELOPMENT)
    missing = []
    if release != version:
        missing.append(
            f"the version is {version}, that of no release. Write {release} instead in {', '.join(holders)}."
        )
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", changelog, re.MULTILINE))
    if not sections.get(release, "").strip():
        missing.append(
            f'CHANGELOG.md has no section on {release}. Replace the heading "## Unreleased" by "## {release}".'
        )
    elif sections.get("Unreleased", "").strip():
        missing.append(
            f'CHANGELOG.md has changes under "## Unreleased". Move what {release} contains to "## {release}".'
        )
    if changed:
        missing.append(f"{changed} files are not committed. Commit them, or undo their changes: git status")
    if f"v{release}" not in tags:
        missing.append(
            f"this commit has no tag v{release}. After the steps above and `make test`: "
            f'git tag --annotate v{release} --message "exactbatch {release}"'
        )
    return missing


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main() -> int:
    """Print what is missing; return 1 if anything is."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    missing = find_missing(
        version,
        (ROOT / "CHANGELOG.md").read_text(),
        tags=_git("tag", "--points-at", "HEAD"),
        changed=len(_git("status", "--porcelain")),
        holders=[
            name
            for name in _git("grep", "--files-with-matches", "--fixed-strings", version)
            if name != "CHANGELOG.md"
        ],
    )
    for number, each in enumerate(missing, 1):
        sys.stdout.write(f"{number}. {each}\n")
    sys.stdout.write(
        "" if missing else f"{version} is complete. To publish its tag: git push origin v{version}\n"
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
