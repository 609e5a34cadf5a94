"""Scaling of the compute time, which communication is not responsible for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.analysis.near_linear import NEAR_LINEAR
from hpcdl.report.formatting import digits, plural, seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hpcdl.report.grouping import Method


def not_scaling(methods: Sequence[Method], oversubscribed: Collection[int]) -> list[str]:
    """Return one line per number of ranks at which the compute time alone rules out near-linear scaling.

    ``methods``: all of one problem. Compute times are medians over the methods of one strategy, since all of them
    compute the same. Ranks that share cores (``oversubscribed`` numbers of them) are not judged.
    """
    missed: dict[tuple[str, int], Method] = {}
    for one in methods:
        last = one.scales[-1]
        shared = last["ranks"] in oversubscribed and not last["network"]
        if last.near_linear is False and not one.is_ceiling and not shared:
            missed.setdefault((str(last["training"]), last["ranks"]), one)
    several = len({scale["training"] for one in methods for scale in one.scales}) > 1
    lines = []
    for (training, ranks), one in missed.items():
        line = _line(one, _compute(methods, training, ranks), methods)
        lines += [f"{training}: {line}" if several and line else line]
    return list(filter(None, lines))


def _compute(methods: Sequence[Method], training: str, ranks: int) -> float | None:
    """Return the median compute time of a step."""
    scales = [scale for one in methods for scale in one.scales]
    alike = [scale for scale in scales if (scale["training"], scale["ranks"]) == (training, ranks)]
    times = [time for scale in alike for time in scale.values("compute_seconds")]
    return float(np.median(times)) if times else None


def _line(one: Method, spent: float | None, methods: Sequence[Method]) -> str:
    """Return the compute time at the last scale and with linear scaling; empty if it scales."""
    last = one.scales[-1]
    at_base, step = _compute(methods, last["training"], last["base_ranks"]), last.median("base_step_seconds")
    strong = last["scaling"] == "strong"
    more = last["ranks"] / last["base_ranks"] if strong else 1.0
    # a step on these ranks takes at least its compute time
    if not spent or not at_base or not step or step / (more * spent) >= NEAR_LINEAR:
        return ""
    base = f"the {seconds(at_base)} of {plural(last['base_ranks'], 'rank')}"
    linear = f"linear scaling of {base} would be {seconds(at_base / more)}" if strong else f"against {base}"
    return (
        f"cause at {plural(last['ranks'], 'rank')}: computing itself does not scale. A rank computes "
        f"{seconds(spent)} in a step; {linear} ({digits(at_base / more / spent)} of linear). Without any "
        "communication the median method would not be near-linear either."
    )
