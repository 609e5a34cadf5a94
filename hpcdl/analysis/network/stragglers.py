"""Cost of a slow rank: throughput of a case with a straggler by that of the same case without.

Two bounds are computed too. The straggler takes ``factor`` times as long for its work, and pauses s seconds in a
share q of its batches: a step of T seconds, C of them its work, becomes one of T + (factor - 1) C + q s. If
every step waits for it, throughput falls to the ratio r of the two; if no step waits, the other W - 1 of W
workers lose nothing, and it falls to (W - 1 + r) / W. If every rank is a straggler, a step waits for a pause with
probability 1 - (1 - q)^W; if no step waits, each worker waits for its pauses alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.analysis.run.launches import undisturbed
from hpcdl.analysis.run.record_fields import configuration
from hpcdl.analysis.statistics.estimates import Interval, Vector, ratio_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcdl.analysis.run.launches import Launch
    from hpcdl.analysis.run.record_fields import Key


@dataclass(frozen=True)
class Slowed:
    """One method at one scale with one kind of straggler; seeds are launches."""

    fields: Mapping[str, Any]
    """Of a case with the straggler."""
    without: float
    """Images per second, the median over seeds; all that were measured by the time they took."""
    having: float
    ratio: Interval
    """``having`` by ``without``, NaN for bounds where too little was measured."""
    waiting: float | None
    """Ratio if every step waits; None if work was not measured, or the slowness has no number."""
    free: float | None
    """Ratio if no step waits; None likewise."""
    disturbed: bool = False
    """True if all launches with or all without the straggler were disturbed."""


def slowed(launches: Iterable[Launch]) -> list[Slowed]:
    """All cases that differ in their straggler only, in their order."""
    plain: dict[Key, list[Launch]] = {}
    slow: dict[Key, list[Launch]] = {}
    for launch in launches:
        fields = launch.fields
        if not len(launch.seconds) or fields.get("kind", "train") != "train":
            continue
        straggler = fields.get("straggler")
        key = (configuration(fields, "straggler"), fields.get("ranks"))
        group = plain.setdefault(key, []) if straggler is None else slow.setdefault((*key, straggler), [])
        group.append(launch)
    return [_compared(plain[*key], having) for (*key, _), having in slow.items() if tuple(key) in plain]


def _compared(without: Sequence[Launch], having: Sequence[Launch]) -> Slowed:
    without, having = undisturbed(without), undisturbed(having)
    ratio = ratio_interval(_per_image(without), _per_image(having), middles=("mean", "mean"))
    waiting, free = _bounds(without, having[0].fields) or (None, None)
    disturbed = bool(without[0].disturbed or having[0].disturbed)
    return Slowed(having[0].fields, _rate(without), _rate(having), ratio, waiting, free, disturbed)


def _rate(side: Sequence[Launch]) -> float:
    return float(np.median([launch.images_per_second for launch in side]))


def _per_image(side: Sequence[Launch]) -> list[Vector]:
    return [launch.seconds / launch.images for launch in side]


def _bounds(without: Sequence[Launch], fields: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the ratios if every step waits for the stragglers of ``fields``, and if none does."""
    factor, workers = fields.get("straggler_factor"), without[0].workers
    work = float(np.median([launch.mean_compute_seconds.mean() for launch in without]))
    if factor is None or not work:
        return None
    share, seconds = fields["straggler_pause_share"], fields["straggler_pause_seconds"]
    step = float(np.median([launch.seconds.mean() for launch in without]))
    slow = step + (factor - 1) * work
    own = step / (slow + share * seconds)
    if fields.get("straggler_rank") == "all":
        return step / (slow + (1 - (1 - share) ** workers) * seconds), own
    return own, (workers - 1 + own) / workers
