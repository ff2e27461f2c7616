"""The stores of the ledger, on one connection."""

from exactbatch.ledger.batches import Batches
from exactbatch.ledger.covered_offsets import CoveredOffsets
from exactbatch.ledger.plans import Plans
from exactbatch.ledger.registry import Registry
from exactbatch.ledger.rejects import Rejects
from exactbatch.postgres.connection import Connection


class Ledger:
    """What most steps of a batch read and write, through one psycopg2 connection; the caller owns the transaction.

    What few steps need has a store or a function in a module of its own, such as streams.py.
    """

    def __init__(self, connection: Connection) -> None:
        self.registry = Registry(connection)
        self.plans = Plans(connection)
        self.batches = Batches(connection)
        self.coverage = CoveredOffsets(connection)
        self.rejects = Rejects(connection)
