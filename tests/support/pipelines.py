"""Pipelines for tests without servers."""

from typing import Any

from exactbatch import Append, Json, Pipeline


def flights_pipeline(**changes: Any) -> Pipeline:
    arguments: dict[str, Any] = {
        "name": "flights",
        "topics": ("flights",),
        "value": Json("year int"),
        "sink": Append("public.flight"),
    }
    return Pipeline(**{**arguments, **changes})
