"""The environment of a test run: folders, the short or the long form, and the seed."""

import os
import secrets
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
ROOT: Final = TESTS.parent
JOBS: Final = ROOT / "jobs"
DOCS: Final = ROOT / "docs"
# Data of the servers and what is worth keeping between runs: jars, archives of Java classes.
HOME: Final = Path(os.environ.get("EXACTBATCH_HOME", ROOT / ".local"))
LONG: Final = bool(os.environ.get("EXACTBATCH_LONG"))
# For how long each reader of Kafka is watched for leaks; 0 is a few seconds.
LEAK_MINUTES: Final = float(os.environ.get("EXACTBATCH_LEAK_MINUTES") or (60 if LONG else 0))
# For how long each format is tried with hostile records; 0 is a few seconds.
FUZZ_MINUTES: Final = float(os.environ.get("EXACTBATCH_FUZZ_MINUTES") or 0)


def draw_seed() -> int:
    """Return EXACTBATCH_SEED if it is set, a random seed in the long form, and always the same seed otherwise."""
    seed = int(os.environ.get("EXACTBATCH_SEED") or (secrets.randbits(32) if LONG else 20261121))
    print(f"EXACTBATCH_SEED={seed}")  # noqa: T201 - pytest shows it when the test fails
    return seed
