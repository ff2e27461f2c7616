"""Find the records whose row a Route has stored in another target than the audited one."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from exactbatch.audit.audit_result import Offsets
from exactbatch.audit.json_members import find_audited_decoder
from exactbatch.audit.log_records import LogRecords, decode_records
from exactbatch.formats.message.decoder import RecordDecoder
from exactbatch.formats.registry.registry_properties import with_registry
from exactbatch.pipeline import Pipeline
from exactbatch.sinks.sink import Routed, SinkTraits


class RoutedElsewhere:
    """Knows these records by the value of the Route's column, which it decodes again."""

    def __init__(
        self, pipeline: Pipeline, traits: SinkTraits, route: Routed, kafka: Mapping[str, Any]
    ) -> None:
        """`traits` are those of the audited target, and `kafka` the properties of Kafka's connection."""
        value = with_registry(pipeline.value, kafka)
        self._pipeline, self._traits, self._route = pipeline, traits, route
        self._decoder = RecordDecoder(value, find_audited_decoder(value))

    def among(self, offsets: Offsets, records: LogRecords) -> Offsets:
        """Return the offsets of the records whose row goes elsewhere. One that goes nowhere is not one of them: it must
        be a reject."""
        elsewhere: list[int] = []
        partition = "", 0  # positions of the source do not matter here, so neither does the partition
        for place, decoded in decode_records(
            self._pipeline, self._traits, self._decoder, None, records, partition, offsets
        ):
            values = decoded.rows.column(self._route.by).to_pylist()
            elsewhere += [
                int(offsets[place][at])
                for at, value in zip(decoded.kept.to_pylist(), values, strict=True)
                if self._route.goes_elsewhere(value)
            ]
        return np.array(elsewhere, np.int64)
