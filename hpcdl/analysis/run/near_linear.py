"""Near-linear scaling: test of each efficiency against 0.90, by the rules of ``hpcdl compare``.

The unit is the launch. Welch's test compares the logarithms of the launches' median step times, and p-values are
adjusted over all cases (Benjamini & Hochberg). One launch of the case or of its base is inconclusive. Simulated
times do not vary between launches: there the interval over steps decides. Where the hypervisor took more time from
one side than from the other, the efficiency as measured and the corrected one must give the same verdict.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.analysis.run.record_fields import is_independent
from hpcdl.analysis.statistics.differences import ALPHA, adjusted, difference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcdl.analysis.run.launches import Launch
    from hpcdl.analysis.statistics.estimates import Vector


NEAR_LINEAR: Final = 0.90
"""Least efficiency that is near-linear."""


def steps_of(launches: Iterable[Launch]) -> list[Vector]:
    """Return the step times (s) of each launch that has any."""
    return [launch.seconds for launch in launches if len(launch.seconds)]


def steps_by_launch(launches: Iterable[Launch]) -> list[Vector]:
    """Return the step time (s) of each launch, the median over its cases, as vectors of one value."""
    by_launch: dict[Any, list[float]] = {}
    for launch in launches:
        if len(launch.seconds):
            by_launch.setdefault(launch.fields.get("launch"), []).append(launch.typical(launch.seconds))
    return [np.array([np.median(each)]) for each in by_launch.values()]


def p_value(base: Sequence[Vector], own: Sequence[Vector], per_rank: float, corrected: float = 1.0) -> float:
    """Return the p-value of an efficiency of 0.90; NaN for one launch on a side.

    ``base``, ``own``: step times (s) of the base's launches and of the case's. The efficiency is ``per_rank``
    times the ratio of ``base`` to ``own``, or ``corrected`` times that: the p-value is the larger one, and 1 if
    0.90 is between the two.
    """
    if min(len(base), len(own)) < 2:
        return math.nan
    limit = np.log(np.concatenate(base)) + math.log(per_rank / NEAR_LINEAR)
    tests = difference([limit, limit + math.log(corrected)], [np.log(np.concatenate(own))] * 2)
    return float(tests.p.max()) if tests.value.prod() > 0 else 1.0


def judge(records: Iterable[dict[str, Any]]) -> None:
    """Set ``near_linear`` of each training record, and adjust ``near_linear_p`` over them.

    True: the efficiency is above 0.90, False: below; None: inconclusive, disturbed, the base, or without
    communication.
    """
    judged = [record for record in records if "near_linear_p" in record and _has_verdict(record)]
    known = [math.nan if record["near_linear_p"] is None else record["near_linear_p"] for record in judged]
    for one, p in zip(judged, adjusted(np.array(known, np.float64)), strict=True):
        one["near_linear_p"] = None if math.isnan(p) else float(p)
        one["near_linear"] = _by_interval(one) if one.get("network") else _by_test(one["efficiency"], p)


def _has_verdict(record: dict[str, Any]) -> bool:
    """Return True if the efficiency was measured against another scale, undisturbed and with communication."""
    if record["efficiency"] is None or record["ranks"] == record["base_ranks"] or is_independent(record):
        return False
    return not (record["disturbed"] or record["base_disturbed"])


def _by_interval(record: dict[str, Any]) -> bool | None:
    low, high = record["efficiency_low"], record["efficiency_high"]
    if low is None or high is None:  # a simulated step without variation is recorded once
        low = high = record["efficiency"]
    if low < NEAR_LINEAR <= high:
        return None
    return bool(low >= NEAR_LINEAR)


def _by_test(efficiency: float, p: float) -> bool | None:
    return efficiency >= NEAR_LINEAR if p < ALPHA else None
