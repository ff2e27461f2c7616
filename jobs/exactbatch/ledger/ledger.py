"""All calls on the ledger, in one class."""

from exactbatch.ledger.launches import Launches
from exactbatch.ledger.plans import Plans
from exactbatch.ledger.position_epochs import PositionEpochs
from exactbatch.ledger.pruning import FoldedBatches
from exactbatch.ledger.rejects import Rejects
from exactbatch.ledger.time_boundaries import TimeBoundaries


class Ledger(PositionEpochs, Plans, FoldedBatches, Rejects, TimeBoundaries, Launches):
    """Reads and writes the ledger through one psycopg2 connection; the caller owns the transaction."""
