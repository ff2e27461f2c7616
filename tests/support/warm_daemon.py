"""The daemon of exactbatch: a worker in place of a killed one is there at once. Where a test has compiled code for all
ranges, the daemon has loaded it, which takes a worker 2 CPU seconds.
"""

import os

from exactbatch.batch.engines.worker_daemon import leave_archives, main
from exactbatch.compiled import availability

if __name__ == "__main__":
    leave_archives()
    if os.environ.get(availability.VARIABLE) in ("0", "1"):
        availability.prepare()
        availability._loaded = False  # each worker tries it for itself, as one does that has to load it
    main()
