"""Bytes that cross each level of a cluster's switches, from the ranks' places in Slurm's topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.trace.run import Run


@dataclass(frozen=True)
class SwitchTraffic:
    """Messages of one case by the highest switch that they cross."""

    fields: Mapping[str, Any]
    bytes_per_step: tuple[float, ...]
    """Bytes sent by all ranks in a step: within nodes, then through 1, 2, ... levels of switches."""


def levels(addresses: Sequence[str]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return (p, p): levels of switches between two ranks, 0 on one node.

    ``addresses`` have the form "spine.leaf1.n7": Slurm's SLURM_TOPOLOGY_ADDR.
    """
    words = [address.split(".") for address in addresses]
    depth = max(map(len, words))
    levels = np.zeros((len(words), len(words)), np.int64)
    for row, word in enumerate(words):
        for column, other in enumerate(words):
            shared = next(
                (at for at, pair in enumerate(zip(word, other, strict=False)) if pair[0] != pair[1]), None
            )
            levels[row, column] = (
                0 if word == other else depth - (min(len(word), len(other)) if shared is None else shared)
            )
    return levels


def switch_traffic(run: Run) -> list[SwitchTraffic]:
    """Return the traffic of every case whose messages were recorded and whose ranks are on several known nodes."""
    traffics = []
    for index, fields in enumerate(run.described):
        ranks = int(fields.get("ranks") or 1)
        known = run.environment_of(index).get("ranks") or ()
        addresses = [str(rank.get("slurm_topology", "unknown")) for rank in known][:ranks]
        if fields.get("network") or len(addresses) < ranks or "unknown" in addresses or len(set(addresses)) < 2:
            continue
        events = run.events_of(index)
        sends = events[(events["label"] == "send") & (events["peer"] >= 0)] if len(events) else events
        steps = run.steps[(run.steps["case_index"] == index) & (run.steps["rank"] == 0)]
        if len(sends) and len(steps):
            between = levels(addresses)
            crossed = between[sends["rank"].to_numpy(), sends["peer"].to_numpy()]
            total = np.bincount(crossed, sends["bytes"].to_numpy(), between.max() + 1)
            traffics.append(SwitchTraffic(fields, tuple(total / len(steps))))
    return traffics
