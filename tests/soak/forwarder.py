"""A forwarder of the soak: sends the results that wait, again and again, until it is killed.

Before each time it writes {"begins": true} to standard output, and afterwards {"sent": …}, or {"error": …,
"message": …, "retryable": …}.
"""

import faulthandler
import json
import logging
import random
import signal
import time
import traceback
from typing import Any

from exactbatch.errors import ExactbatchError
from exactbatch.forwarding.forward import forward_results
from exactbatch.ledger import ledger_session
from exactbatch.settings import Settings
from soak.pipelines import FORWARDING, PIPELINES


def main() -> None:
    """Send and pause, for ever: long enough for another forwarder to begin and end in most pauses."""
    # SIGUSR1 shows where a forwarder hangs.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = Settings.from_environment()
    while True:
        _tell({"begins": True})
        began = time.monotonic()
        outcome = _send(settings)
        logging.info("%s", outcome)
        _tell(outcome)
        time.sleep(random.uniform(0.1, 1.5) * max(1, 2 * (time.monotonic() - began)))


def _tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - it is what the soak reads


def _send(settings: Settings) -> dict[str, Any]:
    pipeline = PIPELINES[FORWARDING]
    try:
        with ledger_session(settings.postgres, "exactbatch forward", pipeline) as connection:
            return {"sent": forward_results(connection, settings, pipeline).sent}
    except ExactbatchError as error:
        return {"error": type(error).__name__, "message": str(error), "retryable": error.retryable}
    except Exception as error:
        traceback.print_exc()
        return {"error": type(error).__name__, "message": str(error), "retryable": False}


if __name__ == "__main__":
    main()
