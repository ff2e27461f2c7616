"""The daemon of exactbatch where random numbers were drawn from before it forks: a library may do so as it is imported,
and NumPy before 2.4 has its generator from the start.
"""

from exactbatch.batch.engines.worker_daemon import leave_archives, main

if __name__ == "__main__":
    leave_archives()
    import numpy as np

    np.random.random()  # the generator that all of a process share
    main()
