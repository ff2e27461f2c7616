"""The specification of a format, as DAG files declare it; decoders.py lists the decoders."""

from typing import ClassVar

from exactbatch.columns import Column


class Format:
    """Says how value bytes become columns; find_decoder() returns what does it.

    null_is_tombstone       true if a null value gives no row; otherwise it gives a row with null
    tombstone_deletes       true if a null value deletes its key in an Upsert; otherwise the values carry deletes
    has_unavailable_values  true if an event may lack values of its row because the source did not send them
    """

    null_is_tombstone: ClassVar[bool] = True
    tombstone_deletes: ClassVar[bool] = True
    has_unavailable_values: ClassVar[bool] = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a row, in the order of the target."""
        raise NotImplementedError

    @property
    def reads_schema_ids(self) -> bool:
        """True if the schemas of the values come from a registry: their IDs may be in headers."""
        return False

    @property
    def gives_several_rows(self) -> bool:
        """True if a value gives any number of rows."""
        return False

    @property
    def reads_payloads(self) -> bool:
        """True if the envelope of a null, {"schema":null,"payload":null}, counts as null."""
        return False

    @property
    def truncate_order(self) -> tuple[str, ...] | None:
        """The columns that order truncates among changes, () if there are none; None if a truncate is a reject."""
        return None

    @property
    def position_columns(self) -> tuple[str, ...]:
        """The columns that give the position of each change's commit; () if there are none."""
        return ()

    @property
    def unordered_columns(self) -> frozenset[str]:
        """The columns whose values look like an order of changes and are none."""
        return frozenset()
