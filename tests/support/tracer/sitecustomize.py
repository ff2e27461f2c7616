"""Writes which functions of exactbatch a process calls, and by which way: for tests/trace_batch.py.

Python imports this module by its name in each process whose PYTHONPATH has this folder.
"""

import inspect
import os
import sys
import threading
from types import FrameType
from typing import Any, Final

_FOLDER: Final = os.environ["EXACTBATCH_TRACE"]
_STOPS: Final = frozenset(os.environ["EXACTBATCH_STOPS"].split())
_OURS: Final = f"{os.sep}jobs{os.sep}"
_seen: set[tuple[str, str]] = set()
# The frames of ours that started the latest thread.
_starter: list[str] = []


def _name_place(frame: FrameType) -> str | None:
    """Return `file:function` of a call of ours; None for others, and for the bodies of modules and classes."""
    code = frame.f_code
    if _OURS not in code.co_filename or not code.co_flags & inspect.CO_OPTIMIZED:
        return None
    return f"{code.co_filename.rpartition(_OURS)[2]}:{code.co_qualname}"


def _stack(frame: FrameType) -> list[str]:
    """Return our frames, the innermost first, with those that started the thread."""
    places = []
    at: FrameType | None = frame
    while at is not None:
        if (place := _name_place(at)) is not None:
            places.append(place)
        at = at.f_back
    return places if threading.current_thread() is threading.main_thread() else [*places, *_starter]


def _write(kind: str, text: str) -> None:
    if (kind, text) in _seen:
        return
    _seen.add((kind, text))
    with open(f"{_FOLDER}/{os.getpid()}", "a") as file:  # noqa: PTH123 - pathlib is not imported yet
        file.write(f"{kind} {text}\n")


def _profile(frame: FrameType, event: str, argument: Any) -> None:
    if event == "call" and (place := _name_place(frame)) is not None:
        _write("call", place)
        if place in _STOPS:
            _write("way", " < ".join(_stack(frame)))
    elif event == "c_call":
        name = getattr(argument, "__name__", "")
        if name in ("start_new_thread", "start_joinable_thread"):
            _starter[:] = _stack(frame)
        elif name == "copy_expert":
            _write("copy", " < ".join(_stack(frame)))
    elif event == "return" and (_name_place(frame) or "").endswith("/publish.py:publish"):
        _write("committed", "")


sys.setprofile(_profile)
threading.setprofile(_profile)
