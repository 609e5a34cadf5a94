"""How old the parameters are from which gradients were computed, in updates that have been made since.

Staleness of a gradient: version of the parameters it was applied to, less the version it was computed from
(Zhang, Gupta, Lian & Liu, IJCAI 2016). Where W workers push each gradient and wait for nobody, the mean of the
long run follows from how many gradients of a worker are on their way at a time, from the pull of their parameters
to their push:

    1, pulling right after the push       (W - 1) / collect
    2, pulling beside the next gradient   (2 W - 1) / collect

whatever the times. Number the pushes in the order in which they come. The nth finds floor((n - 1) / collect)
updates made, and what is pulled with it has seen floor(n / collect). Each pull is for one gradient, which is
pushed m pushes later in the mean, m being the gradients that are on their way at a time, W or 2 W; so the sums of
the two over all pushes differ by (m - 1) / collect to a push.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.analysis.labels import parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.analysis.launches import Launch

SERVED: Final = "asynchronous"
"""The strategy that keeps parameters on servers."""
FREELY: Final = {"bound": "None", "n_fetch": "1", "n_push": "1"}
"""Its settings with which workers pull with each push and wait for nobody."""


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
    """What the law says that applies, None where workers wait, or fetch or push more seldom than they compute."""


def staleness(launch: Launch) -> Staleness | None:
    """What the updates of one launch say; None where there were none."""
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
    name, settings = parts(str(launch.fields.get("training") or ""))
    under_way = len(workers) * (2 if settings.get("overlap") == "True" else 1)
    free = all(settings.get(key, value) == value for key, value in FREELY.items())
    return Staleness(
        mean=float(old[inside].mean()),
        largest=int(old.max()),
        shares=tuple((np.bincount(old[inside].clip(0)) / inside.sum()).tolist()),
        by_worker={one: (len(its), float(its.mean())) for one, its in workers.items()},
        collect=collect if name == SERVED else None,
        expected=(under_way - 1) / collect if name == SERVED and free else None,
    )
