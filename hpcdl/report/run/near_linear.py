"""Scaling of the compute time, which communication is not responsible for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.analysis.run.disturbance import NOTED_STEAL
from hpcdl.analysis.run.near_linear import NEAR_LINEAR
from hpcdl.report.formats.cells import digits, interval, plural, seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hpcdl.report.run.grouping import Method, Scale


def count(methods: Sequence[Method], oversubscribed: Collection[int]) -> str:
    """Return the number of near-linear methods of one problem at their largest scale.

    Without any verdict, return the range of their efficiencies.
    """
    ends = [method.scales[-1] for method in methods]
    scales = {scale["ranks"] for scale in ends}
    where = plural(ends[0]["ranks"], "rank") if len(scales) == 1 else "their largest scale"
    disturbed = sum(scale.disturbed for scale in ends)
    inconclusive = sum(scale.near_linear is None for scale in ends) - disturbed
    states = [f"{inconclusive} inconclusive"] * bool(inconclusive) + [f"{disturbed} disturbed"] * bool(disturbed)
    if inconclusive + disturbed == len(ends):
        line = (
            f"Efficiency is {_range([*map(_end, methods)])} at {where}, without a verdict on near-linear scaling "
            f"(>= {NEAR_LINEAR:.2f}): {', '.join(states)}."
        )
    else:
        near_linear = sum(scale.near_linear is True for scale in ends)
        are = "method is" if len(ends) == 1 else "methods are"
        line = f"{near_linear} of {len(ends)} {are} near-linear at {where} (efficiency >= {NEAR_LINEAR:.2f})."
        line += f" Without a verdict: {', '.join(states)}." if states else ""
    return line + oversubscription(ends, oversubscribed)


def oversubscription(ends: Sequence[Scale], oversubscribed: Collection[int]) -> str:
    """Return a warning about measured scales whose ranks share cores; empty if none do."""
    measured = {scale["ranks"] for scale in ends if not scale["network"] and scale["kind"] != "replay"}
    shared = sorted(measured & set(oversubscribed))
    numbers = ", ".join(map(str, shared))
    return (
        f" OVERSUBSCRIBED: at {numbers} ranks they share cores, which does not measure scaling." if shared else ""
    )


def _range(values: Sequence[float]) -> str:
    low, high = digits(min(values)), digits(max(values))
    return low if low == high else f"{low} to {high}"


def verdict(scale: Scale) -> str:
    """Return whether a case is near-linear: yes, no, disturbed, or inconclusive with the reason."""
    if scale.disturbed:
        return "disturbed"
    if scale.near_linear is not None:
        return "yes" if scale.near_linear else "no"
    return f"inconclusive: {_reason(scale)}"


def _reason(scale: Scale) -> str:
    if scale.is_one_launch:
        return "one launch"
    low, high = scale.low("efficiency_low"), scale.high("efficiency_high")
    if low is None or high is None:
        return "too few steps for an interval"
    inside = low < NEAR_LINEAR <= high
    if not inside:
        return "too many cases for this difference"
    stolen = max(scale.values("stolen"), default=0.0)
    cause = f", which steal time of {100 * stolen:.0f} % widens" if stolen >= NOTED_STEAL else ""
    return f"{NEAR_LINEAR:.2f} is inside the interval{cause}"


def _efficiency(scale: Scale) -> str:
    bounds = interval(scale.low("efficiency_low"), scale.high("efficiency_high"))
    return digits(scale.median("efficiency")) + (f", {bounds}" if bounds != "-" else "")


def overview(name: str, methods: Sequence[Method], cause: str) -> tuple[int, str]:
    """Return how many ranks the methods of one problem reach near-linearly, and a sentence about the best one.

    ``methods`` are compared with fewer ranks; ``cause`` ends the sentence where none reaches the largest scale.
    """
    reached, best = max(
        ((_held([scale for scale in method.scales if not scale.is_base]), method) for method in methods),
        key=lambda pair: (pair[0], _end(pair[1])),
    )
    beyond = [scale for scale in best.scales if not scale.is_base]
    last, count = beyond[-1], len(beyond)
    if reached:
        near = beyond[reached - 1]
        line = f"{name}: near-linear {'up to' if reached < count else 'at'} {plural(near['ranks'], 'rank')} "
        line += f"with {best.name} (efficiency {_efficiency(near)})"
    else:
        verdicts = [method.scales[-1].near_linear for method in methods]
        state = "not near-linear" if verdicts.count(False) > len(verdicts) / 2 else "no verdict"
        line = f"{name}: {state} at {plural(last['ranks'], 'rank')} (efficiency {_range([*map(_end, methods)])})"
    if 0 < reached < count:
        state = {True: "near-linear", False: "not near-linear", None: "without a verdict"}[last.near_linear]
        line += f", {state} at {plural(last['ranks'], 'rank')} ({_efficiency(last)})"
    return reached and beyond[reached - 1]["ranks"], f"{line}{'; ' + cause if cause and not reached else ''}."


def _held(beyond: Sequence[Scale]) -> int:
    """Return the number of scales up to which all are near-linear; ``beyond`` are those after the base."""
    return next((number for number, scale in enumerate(beyond) if not scale.near_linear), len(beyond))


def _end(method: Method) -> float:
    return method.scales[-1].median("efficiency") or 0.0


def computing(methods: Sequence[Method], oversubscribed: Collection[int]) -> list[str]:
    """Return one line per number of ranks at which the compute time alone rules out near-linear scaling.

    ``methods``: all of one problem. Compute times are medians over the methods of one strategy, since all of them
    compute the same. Ranks that share cores (``oversubscribed`` numbers of them) are not judged.
    """
    missed: dict[tuple[str, int], Method] = {}
    for method in methods:
        last = method.scales[-1]
        shared = last["ranks"] in oversubscribed and not last["network"] and last["kind"] != "replay"
        if last.near_linear is False and not method.is_ceiling and not shared:
            missed.setdefault((str(last["training"]), last["ranks"]), method)
    several = len({scale["training"] for method in methods for scale in method.scales}) > 1
    lines = []
    for (training, ranks), method in missed.items():
        line = _computing(method, _compute(methods, training, ranks), methods)
        lines += [f"{training}: {line}" if several and line else line]
    return list(filter(None, lines))


def _compute(methods: Sequence[Method], training: str, ranks: int) -> float | None:
    """Return the median compute time of a step."""
    scales = [scale for method in methods for scale in method.scales]
    alike = [scale for scale in scales if (scale["training"], scale["ranks"]) == (training, ranks)]
    times = [time for scale in alike for time in scale.values("compute_seconds")]
    return float(np.median(times)) if times else None


def _computing(method: Method, spent: float | None, methods: Sequence[Method]) -> str:
    """Return how far computing itself scales to the last scale; empty if it scales."""
    last = method.scales[-1]
    at_base, step = _compute(methods, last["training"], last["base_ranks"]), last.median("base_step_seconds")
    more = last["ranks"] / last["base_ranks"] if last["scaling"] == "strong" else 1.0
    # a step on these ranks takes at least its compute time
    if not spent or not at_base or not step or step / (more * spent) >= NEAR_LINEAR:
        return ""
    linear = at_base / more
    return (
        f"computing alone reaches {digits(linear / spent)} of linear at {plural(last['ranks'], 'rank')} "
        f"({seconds(spent)} a step, linear {seconds(linear)})"
    )
