"""What this process holds: memory that is allocated, file descriptors and threads."""

import ctypes as c
import sys
from dataclasses import dataclass, fields

import psutil
import pyarrow as pa


class _Mallinfo2(c.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, c.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@dataclass(frozen=True)
class Held:
    """What this process holds at a moment.

    allocated: bytes that malloc() and Arrow have handed out and that are not freed; unlike the resident size, it does
    not depend on what the allocators keep for later
    blocks: small objects of Python
    resident: bytes
    """

    allocated: int
    blocks: int
    resident: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> "Held":
        """Look. This needs glibc 2.33 or newer."""
        mallinfo2 = c.CDLL(None).mallinfo2
        mallinfo2.restype = _Mallinfo2
        malloc, process = mallinfo2(), psutil.Process()
        return cls(
            allocated=malloc.uordblks + malloc.hblkhd + pa.total_allocated_bytes(),
            blocks=sys.getallocatedblocks(),
            resident=process.memory_info().rss,
            descriptors=process.num_fds(),
            threads=process.num_threads(),
        )

    def __sub__(self, before: "Held") -> "Held":
        """How much more it is than before."""
        return Held(*(getattr(self, each.name) - getattr(before, each.name) for each in fields(self)))
