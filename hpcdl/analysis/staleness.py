"""How old the parameters are from which gradients were computed, in updates that have been made since.

Staleness of a gradient: version of the parameters it was applied to, less the version it was computed from
(Zhang, Gupta, Lian & Liu, IJCAI 2016). Where each of W workers pulls right after it pushed and each update takes
``collect`` gradients, the mean of the long run is (W - 1) / collect, whatever the times: of the gradients that are
pushed, each is pushed between pull and push of each other worker's gradient once on average.
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
FREELY: Final = {"bound": "None", "n_fetch": "1", "n_push": "1", "overlap": "False"}
"""Its settings with which workers pull right after they pushed and wait for nobody."""


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
    """(W - 1) / collect, None where workers wait or fetch more seldom than they push."""


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
    free = all(settings.get(key, value) == value for key, value in FREELY.items())
    return Staleness(
        mean=float(old[inside].mean()),
        largest=int(old.max()),
        shares=tuple((np.bincount(old[inside].clip(0)) / inside.sum()).tolist()),
        by_worker={one: (len(its), float(its.mean())) for one, its in workers.items()},
        collect=collect if name == SERVED else None,
        expected=(len(workers) - 1) / collect if name == SERVED and free else None,
    )
