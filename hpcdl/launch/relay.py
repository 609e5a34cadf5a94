"""Latency of links where the kernel has no netem: a thread passes frames between TAP cards (tuntap.rst of Linux).

TCP's frames pass uncut, with a header that says how to cut them: 1 Gbit/s is two thousand frames a second.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from select import select
from time import monotonic
from typing import Final

DEVICE: Final = Path("/dev/net/tun")


def card(name: str) -> int:
    """Return the file descriptor of a new TAP card, with sums and cuts of TCP left to others."""
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    # TUNSETIFF: TAP, NO_PI, VNET_HDR; TUNSETOFFLOAD: CSUM, TSO4, TSO6
    fcntl.ioctl(descriptor, 0x400454CA, struct.pack("16sH22x", name.encode(), 0x0002 | 0x1000 | 0x4000))
    fcntl.ioctl(descriptor, 0x400454D0, 0x01 | 0x02 | 0x04)
    return descriptor


def relay(cards: Mapping[int, int], seconds: float) -> None:
    """Pass frames between pairs of cards, each after half of ``seconds``, for ever: hosts are two pairs apart."""
    peers = {**cards, **{other: one for one, other in cards.items()}}
    waiting = deque[tuple[float, int, bytes]]()
    while True:
        readable, _, _ = select(list(peers), [], [], max(0.0, waiting[0][0] - monotonic()) if waiting else None)
        for source in readable:
            with suppress(OSError):  # no more frames, or a card that is down or full, which loses one
                while frame := os.read(source, 1 << 17):
                    waiting.append((monotonic() + seconds / 2, peers[source], frame))
        while waiting and waiting[0][0] <= monotonic():
            with suppress(OSError):
                os.write(*waiting.popleft()[1:])
