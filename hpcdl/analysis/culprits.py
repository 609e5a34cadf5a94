"""Host or link that is slow since some run, although each run may have other hosts.

Hypotheses are that one suspect is slow, from some run on and by some factor, or that none is. Departures are
normal, or outliers. Bayes' theorem weighs the hypotheses by all runs in which suspects took part: a suspect that
is fast in a later run is cleared. As for change points, each run is judged with the runs before it alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from hpcdl.analysis.statistics import Vector

Matrix = npt.NDArray[np.float64]

FACTORS: Final = np.log([1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0, 10.0])
"""Logarithms of the factors by which a suspect may be slow."""
PRIOR: Final = 0.5
"""Probability that some suspect becomes slow within :data:`WINDOW` runs."""
SURE: Final = 0.95
"""Probability from which a suspect is named."""
CLEARED: Final = 6.0
"""Evidence (nats) of its newest runs against a named suspect, from which it is slow no more."""
WINDOW: Final = 60
"""Runs that are judged together."""
OUTLIERS: Final = 0.15
"""Density of outliers per unit of the logarithm: 3 % of all values between +10 and +30 %."""
FEWEST: Final = 5
"""Least number of values for an estimate."""
LEAST_DEVIATION: Final = 0.005
"""Standard deviation of departures, at least."""


@dataclass(frozen=True)
class Culprit:
    """Suspect that was named."""

    suspect: int
    factor: int
    """Index of the most likely of :data:`FACTORS` when it was named."""
    first: int
    """First slow run."""
    found: int
    """Run with which it was named."""
    ended: int | None
    """First of the runs that cleared it; None while it is slow."""
    probability: float
    """Probability that it is slow, when it was named."""
    ratio: float = math.nan
    """Median of its slow departures, as a factor."""
    runs: int = 0
    """Runs in which it took part and was slow."""


def shared_departures(logs: Matrix) -> Vector:
    """(runs,): median over the cases ``logs`` (cases, runs) of a run's departures from the usual; NaN if missing.

    Usual is the 40 % quantile of the runs so far: runs with a slow host may be many.
    """
    found = np.full(logs.shape[1], np.nan)
    for run in range(FEWEST, logs.shape[1]):
        before = logs[:, max(0, run - WINDOW) : run]
        known = np.isfinite(logs[:, run]) & (np.isfinite(before).sum(axis=1) >= FEWEST)
        if known.any():
            found[run] = np.median(logs[known, run] - np.nanquantile(before[known], 0.4, axis=1))
    return found


def evidence(departures: Matrix, outliers: float = OUTLIERS) -> npt.NDArray[np.float64]:
    """(factors, suspects, runs): logarithm of the likelihood of "slow by this factor" by that of "as usual".

    ``departures`` (suspects, runs): logarithms of time by the usual time, NaN where a suspect did not take part.
    Their scatter is known from the lower half, which slow suspects do not reach. ``outliers``: density of outliers
    per unit of the logarithm.
    """
    known = departures[np.isfinite(departures)]
    if len(known) < FEWEST:
        return np.zeros((len(FACTORS), *departures.shape))
    low, high = np.quantile(known, [0.1, 0.4])
    deviation = max(float(high - low) / 1.028, LEAST_DEVIATION)
    usual = float(high) + 0.253 * deviation

    def density(values: Matrix) -> Matrix:
        normal = np.exp(-((values / deviation) ** 2) / 2) / (deviation * np.sqrt(2 * np.pi))
        return np.asarray(normal + outliers, np.float64)

    values = departures - usual
    # a value beyond the factor is as good a sign as one at it
    beyond = np.minimum(values - FACTORS[:, None, None], 0)
    return np.nan_to_num(np.log(density(beyond) / density(values)))


def probabilities(ratios: npt.NDArray[np.float64]) -> Vector:
    """(suspects,): probability of each suspect that it is slow now; ``ratios`` as of :func:`evidence`."""
    factors, suspects, runs = ratios.shape
    since = np.cumsum(ratios[:, :, ::-1], axis=2)  # slow in the last 1, 2, ... runs
    top = max(float(since.max(initial=0)), 0.0)
    weight = np.exp(since - top).sum(axis=(0, 2)) * PRIOR / (factors * suspects * runs)
    return np.asarray(weight / (weight.sum() + (1 - PRIOR) * np.exp(-top)), np.float64)


def culprits(ratios: npt.NDArray[np.float64], departures: Matrix) -> list[Culprit]:
    """Return the suspects that were named, in that order; ``ratios`` is :func:`evidence` of ``departures``."""
    found: list[Culprit] = []
    named: Culprit | None = None
    begin = 0
    for now in range(ratios.shape[2]):
        begin = max(begin, now + 1 - WINDOW)
        if not ratios[:, :, now].any():
            continue
        if named is None:
            probability = probabilities(ratios[:, :, begin : now + 1])
            suspect = int(probability.argmax())
            if probability[suspect] >= SURE:
                named = _culprit(ratios[:, suspect], suspect, begin, now, float(probability[suspect]))
        elif (ended := _end(ratios[named.factor, named.suspect, : now + 1], named.found)) is not None:
            found.append(_sized(replace(named, ended=ended), ratios, departures))
            named, begin = None, ended
    return found if named is None else [*found, _sized(named, ratios, departures)]


def _culprit(ratios: Matrix, suspect: int, begin: int, now: int, probability: float) -> Culprit:
    """Return the suspect with evidence ``ratios`` (factors, runs), named by the run ``now``."""
    since = np.cumsum(ratios[:, begin : now + 1][:, ::-1], axis=1)[:, ::-1]
    factor, place = divmod(int(np.argmax(since)), since.shape[1])
    first = begin + place + int(np.argmax(ratios[factor, begin + place : now + 1] > 0))
    return Culprit(suspect, factor, first, now, None, probability)


def _end(ratios: Vector, found: int) -> int | None:
    """Return the first of the newest runs that clear a suspect which was named by the run ``found``; else None."""
    against = -np.cumsum(ratios[: found - len(ratios) : -1])[::-1]  # of the newest 1, 2, ... runs
    if not len(against) or against.max() < CLEARED:
        return None
    return found + 1 + int(np.argmax(against))


def _sized(one: Culprit, ratios: npt.NDArray[np.float64], departures: Matrix) -> Culprit:
    slow = np.flatnonzero(ratios[one.factor, one.suspect, one.first : one.ended] > 0) + one.first
    return replace(one, ratio=float(np.exp(np.median(departures[one.suspect, slow]))), runs=len(slow))
