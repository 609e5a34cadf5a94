"""Staleness: the age of the parameters from which gradients were computed, in updates made since.

Staleness of a gradient: version of the parameters it was applied to, less the version it was computed from
(Zhang, Gupta, Lian & Liu, IJCAI 2016). Where W workers push each gradient and do not wait for each
other, the long run's mean follows from the number of gradients of a worker between the pull of their parameters
and their push:

    1, pulling right after the push       (W - 1) / collect
    2, pulling during the next gradient   (2 W - 1) / collect

whatever the times. Number the pushes in the order in which they come. The nth finds floor((n - 1) / collect)
updates made, and the parameters pulled with it have floor(n / collect). Each pull is for one gradient, which is
pushed m pushes later in the mean, m being the gradients that are on their way at a time, W or 2 W; so the sums of
the two over all pushes differ by (m - 1) / collect to a push.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.analysis.launches import Launch


@dataclass(frozen=True)
class Staleness:
    """Of the gradients that were applied within the measured span; the largest is of the whole training."""

    mean: float
    largest: int
    shares: tuple[float, ...]
    """Of the gradients, at staleness 0, 1, 2, ..."""
    by_worker: Mapping[int, tuple[int, float]]
    """Rank of the worker: its gradients, and their mean staleness."""
    collect: float | None
    """Gradients to an update, the mean; None where no server collects them."""
    expected: float | None
    """The mean by the law above, None where workers wait, or pull or push more seldom than they compute."""


def staleness(launch: Launch) -> Staleness | None:
    """Return the staleness of one launch's updates; None without updates."""
    if not launch.updates:
        return None
    time, worker, old = (launch.updates[name] for name in ("time", "worker", "staleness"))
    begin, end = launch.span or (time.min(), time.max())
    inside = (time >= begin) & (time <= end)
    if not inside.any():
        return None
    where = np.stack([launch.updates["rank"][inside], launch.updates["version"][inside]])
    collect = int(inside.sum()) / np.unique(where, axis=1).shape[1]
    workers = {int(one): old[inside & (worker == one)] for one in np.unique(worker[inside])}
    in_flight = launch.fields.get("gradients_in_flight")
    return Staleness(
        mean=float(old[inside].mean()),
        largest=int(old.max()),
        shares=tuple((np.bincount(old[inside].clip(0)) / inside.sum()).tolist()),
        by_worker={one: (len(its), float(its.mean())) for one, its in workers.items()},
        collect=collect if launch.fields.get("served") else None,
        expected=(len(workers) * in_flight - 1) / collect if in_flight else None,
    )
