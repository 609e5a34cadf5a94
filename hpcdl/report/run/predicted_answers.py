"""Answers of ``hpcdl predict``: up to how many ranks of a network training stays near-linear, and times."""

import math
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import NEAR_LINEAR
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.fabric.network import NETWORKS
from hpcdl.prediction.network_file import bounds
from hpcdl.prediction.predict import Prediction
from hpcdl.report.formats.cells import digits, interval, percent, plural, seconds, spread, volume
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.names import Names, in_words, network_name, scheme_name, title_of, without_settings

SHEETS: Final = "network from data sheets: 2.6 to 3.0 times too fast on two clusters"
"""Medians of the presets of LUMI and Leonardo in reports/data/clusters.json.xz."""
YES, NO, OPEN = "yes", "no", "not decided"
ANSWERS: Final = {YES: "near-linear", NO: "not near-linear", OPEN: "undecided"}
"""Words of verdicts by the answer to whether a number of ranks is near-linear."""


def by_problem(rows: Sequence[Record]) -> dict[str, list[Record]]:
    """Return predicted steps by their problem in words: its rows have one table."""
    groups: dict[str, list[Record]] = {}
    alike = Counter(map(without_settings, {str(row.model) for row in rows}))
    for row in rows:
        batch = (row.global_batch or 0) // (1 if row.scaling == "strong" else row.ranks)
        head = without_settings(str(row.model))
        problem = f"{network_name(head if alike[head] == 1 else str(row.model))} on {row.dataset}"
        what = ", ".join(filter(None, (problem, row.backend, row.dtype)))
        groups.setdefault(f"{what}, {row.scaling} scaling, {batch} images", []).append(row)
    return groups


def ratio(row: Record) -> float | None:
    """Return predicted / measured time; None if it was not measured."""
    measured = row.step_seconds if row.is_training else row.time_p50_seconds
    return (row.predicted_seconds or 0) / measured if measured else None


def _half(row: Record) -> float:
    """Return half of the 95 % interval of the logarithm of a predicted time; 0 without an interval."""
    low, high = row.predicted_low_seconds, row.predicted_high_seconds
    return math.log(high / low) / 2 if low and high else 0.0


def speedup(row: Record, group: Sequence[Record]) -> Interval | None:
    """Return the predicted speed on the ranks of a row / on one rank; bounds are NaN if they are not known."""
    base = next((one for one in group if one.ranks == 1 and one.predicted_images_per_second), None)
    if base is None or not (base.predicted_images_per_second and row.predicted_images_per_second):
        return None
    value = row.predicted_images_per_second / base.predicted_images_per_second
    low, high = bounds(value, _half(row), _half(base))
    return Interval(value, *(math.nan if bound is None else bound for bound in (low, high)))


def near_linear(row: Record, gain: Interval) -> str:
    """Return YES or NO if the interval of the efficiency is on one side of the limit, else OPEN."""
    least = NEAR_LINEAR * row.ranks
    low, high = (gain.value if math.isnan(bound) else bound for bound in gain[1:])
    return OPEN if row.undetermined or low < least <= high else YES if low >= least else NO


def verdicts(prediction: Prediction) -> list[Verdict]:
    """Return an answer per problem, else one per collective, or per mesh."""
    where, groups = prediction.estimate.title, by_problem(prediction.steps).values()
    models = [str(group[0].model) for group in groups]
    heads = [*map(without_settings, models)]
    told = [
        _of_steps(group, where, network_name(head if heads.count(head) == 1 else model))
        for head, model, group in zip(heads, models, groups, strict=True)
    ]
    told += [_of_operation(prediction.rows, where)] if prediction.rows and not told else []
    for training in prediction.meshes:
        chosen, best = training.chosen, training.best
        case = f"{network_name(str(chosen.model))} in batches of {chosen.global_batch}"
        told.append(_verdict("mesh", chosen, where, case, _fastest(chosen, best), mesh=str(chosen.parallelism)))
    return told


def bounds_of(row: Record) -> str:
    """Return the interval of a predicted time; empty if both bounds read alike."""
    low, high = row.predicted_low_seconds, row.predicted_high_seconds
    return "" if seconds(low) == seconds(high) else interval(low, high, seconds)


def _of_steps(group: Sequence[Record], where: str, model: str) -> Verdict:
    """Return the answer of one problem: that of the method that is fastest on the most ranks."""
    most = max(row.ranks for row in group)
    best = max((row for row in group if row.ranks == most), key=lambda row: row.predicted_images_per_second or 0)
    rows = sorted((row for row in group if row.configuration() == best.configuration()), key=lambda row: row.ranks)
    names = Names(group)
    case = model + (f" with {in_words(names(best), best)}" if len({*map(names, group)}) > 1 else "")
    gains = [(row, gain) for row in rows if row.ranks > 1 and (gain := speedup(row, group))]
    if not gains:
        return _verdict("step", best, where, case)
    judged = [(row, gain, near_linear(row, gain)) for row, gain in gains]
    row, gain, answer = next((each for each in judged if each[2] != YES), judged[-1])
    near = max((one.ranks for one, _, each in judged if each == YES and one.ranks < row.ranks), default=0)
    ends = "" if math.isnan(gain.low) else f" ({interval(gain.low, gain.high)})"
    facts = {"speedup": f"{digits(gain.value)} times{ends}", "least": digits(NEAR_LINEAR * row.ranks)}
    cause = f"{case} is near-linear up to {near} ranks." if near and answer != YES else ""
    return _verdict(ANSWERS[answer], row, where, case, cause, **facts)


def _of_operation(rows: Sequence[Record], where: str) -> Verdict:
    """Return the shortest time of the longest vectors on the most ranks, of the first operation."""
    operation = attrgetter("collective", "pattern", "counts")
    first = [row for row in rows if operation(row) == operation(rows[0])]
    largest = max(first, key=lambda row: (row.ranks, row.message_bytes or 0))
    alike = [row for row in first if (row.ranks, row.message_bytes) == (largest.ranks, largest.message_bytes)]
    simulated = [row for row in alike if not row.library_decides]  # a library's time is that of another scheme
    best, *others = sorted(simulated or alike, key=lambda row: row.predicted_seconds or 0)
    close = sum((row.predicted_low_seconds or math.inf) <= (best.predicted_high_seconds or 0) for row in others)
    rest = f", the fastest of {plural(len(others) + 1, 'scheme')}" if others else ""
    rest = f"; {plural(close, 'other scheme')} may be as fast" if close else rest
    name, scheme = best.collective or "exchange", f" with {title_of(scheme_name(best))}" if best.collective else ""
    case = f"{'an' if name[0] in 'aeiou' else 'a'} {name} of {volume(best.message_bytes)}"
    return _verdict("operation", best, where, case, scheme=scheme, others=rest)


def _fastest(chosen: Record, best: Record | None) -> str:
    """Return in a sentence which mesh was measured to be the fastest; empty if none was measured."""
    if best is None:
        return ""
    step = chosen.step_seconds
    also = f", the chosen mesh takes {seconds(step)}" if step else "; the chosen mesh was not measured"
    rest = "" if best is chosen else also
    return f"Measured: {best.parallelism} is the fastest and takes {seconds(best.step_seconds)}{rest}."


def _verdict(word: str, row: Record, where: str, case: str, cause: str = "", **facts: str) -> Verdict:
    bounds = bounds_of(row) and f" ({bounds_of(row)})"
    if (times := row.times_the_measured_ranks or 0.0) > 1:
        measured = plural(round(row.ranks / times), "rank")
        cause = f"{cause} Beyond the measured {measured} this is so if nothing new begins there.".strip()
    known = {"ranks": plural(row.ranks, "rank"), "network": where, "time": seconds(row.predicted_seconds)}
    return Verdict(
        topic="prediction", word=word, case=case, cause=cause, facts={**known, "bounds": bounds, **facts}
    )


def badges(prediction: Prediction) -> list[str]:
    """Return the basis of the predictions, in words."""
    rows, estimate = [*prediction.rows, *prediction.steps], prediction.estimate
    farthest = max((row.times_the_measured_ranks or 0 for row in rows if "extrapolated" in row.marks), default=0)
    computing = any(row.compute_times in prediction.disturbed for row in prediction.steps)
    marks = {
        "simulated": True,
        SHEETS: not estimate.certainty and estimate.network.name in NETWORKS,
        f"up to {digits(farthest)} times the measured ranks": farthest,
        "cost parameters undetermined": any(row.undetermined for row in rows),
        "computing disturbed by other load": computing,
    }
    return [mark for mark, holds in marks.items() if holds]


def notes(prediction: Prediction) -> list[str]:
    """Return how near predicted times are to measured ones, and which computing was disturbed, in sentences."""
    told = list[str]()
    rows = [row for row in (*prediction.rows, *prediction.steps) if "disturbed" not in row.marks]
    if ratios := [error for row in rows if (error := ratio(row)) is not None]:
        low, high = min(ratios), max(ratios)
        ends = " to ".join(dict.fromkeys((off(low), off(high))))
        if (low < 1) == (high < 1):
            ends = f"{spread([abs(low - 1), abs(high - 1)], percent)} too {'short' if low < 1 else 'long'}"
        told.append(f"Predictions of {plural(len(ratios), 'undisturbed time')} are {ends}.")
    if resting := [row for row in prediction.steps if row.compute_times in prediction.disturbed]:
        part = f"the compute times of {len(resting)} of {len(prediction.steps)} predicted steps"
        told.append(f"Other load disturbed {part} ({resting[0].compute_times}), which may be too long.")
    return told


def off(error: float) -> str:
    """Return the error of a prediction, predicted / measured, in words: 4.3 % too short."""
    return f"{percent(abs(error - 1))} too {'short' if error < 1 else 'long'}"
