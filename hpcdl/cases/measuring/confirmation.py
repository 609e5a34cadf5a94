"""Second measurement of what took longer than its peers, later in the same case, beside controls.

A busy neighbour slows a pair of ranks, or a host, for a moment; a defect slows it each time. What departs is
measured again after a pause, together with controls of usual speed. If it departs again, the mean counts;
otherwise the departure did not return.
"""

import json
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from time import sleep
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.comm import Comm
from hpcdl.fabric.pairs import DEPARTS

CONTROLS: Final = 3
"""Items of usual speed that are measured beside those that depart, at most."""
PAUSE_SECONDS: Final = 1.0
"""Time before the next measurement: bursts of other processes end meanwhile."""
Times = npt.NDArray[np.int64]
Measure = Callable[[Sequence[int]], Awaitable[Times]]


async def confirmed(
    first: Times, rounds: Sequence[Sequence[int]], measure: Measure, measurements: int
) -> str | None:
    """Measure again what departs, until ``measurements`` in all; return the departures as JSON, None without any.

    ``first``: (items,) times (ns), the same on all ranks; 0 for an item that was not measured. ``rounds``: the
    items that were measured at the same time. ``measure(items)`` measures items of one round at the same time, and
    returns their times likewise. The text is a list of [item, departure, departure, ...], each a time / the usual
    time (the lower quartile of all), where later times are scaled by those of the
    least disturbed control.
    """
    known = np.flatnonzero(first)
    if not len(known):
        return None
    # of three hosts one slow one makes two of three pairs slow: the median would be of a slow pair
    usual = float(np.quantile(first[known], 0.25, method="lower"))
    departures = {int(item): [first[item] / usual] for item in known if first[item] > DEPARTS * usual}
    nearest = sorted((int(item) for item in known), key=lambda item: abs(first[item] - usual))
    controls = [item for item in nearest if item not in departures]
    for _ in range(measurements - 1):
        suspects = {item for item, values in departures.items() if min(values) > DEPARTS}
        if not suspects or not controls:
            break
        _pause()
        for items in rounds:
            chosen = [item for item in items if item in suspects]
            if not chosen:
                continue
            beside = [item for item in controls if item in items][:CONTROLS]
            again = await measure([*chosen, *beside])
            if not beside:  # no other pair of this round has a usual time
                beside = controls[:1]
                again = np.maximum(again, await measure(beside))
            # the least disturbed control: a busy one would clear what is slow
            scale = max(first[control] / again[control] for control in beside) / usual
            for item in chosen:
                departures[item].append(float(again[item] * scale))
    shown = [[item, *(round(float(value), 4) for value in values)] for item, values in departures.items()]
    return json.dumps(shown) if shown else None


def _pause() -> None:
    sleep(PAUSE_SECONDS)


async def hosts_of_ranks(comm: Comm) -> list[int]:
    """Return the first rank of each rank's host. Collective."""
    name = f"{os.environ.get('SLURMD_NODENAME')} {socket.gethostname()}"
    names = (await comm.allgather_words(np.array([crc32(name.encode())])))[:, 0].tolist()
    return [names.index(name) for name in names]


def median_ns(spans: Sequence[tuple[int, int]]) -> int:
    """Return the median length of ``spans`` (ns), at least 1."""
    return max(1, int(np.median([end - begin for begin, end in spans])))
