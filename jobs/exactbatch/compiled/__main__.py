"""`python -m exactbatch.compiled`: compile the fast path now, so that no batch has to."""

import sys
import time

from exactbatch.compiled.availability import prepare, unavailable


def main() -> int:
    """Compile, or report why that is impossible, which is no failure: batches then run without the fast path."""
    started = time.monotonic()
    if reason := unavailable():
        print(f"the fast path is not available: {reason}", file=sys.stderr)  # noqa: T201
        return 0
    print(f"{prepare()}: compiled in {time.monotonic() - started:.1f} s")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
