"""Predictions of a fitted network beside measured times."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.launch.testbed import usual_rate
from hpcdl.report.formats.cells import digits, percent, plural, rate
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.declaration import Answer, Declaration, certainty
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.method_names import scheme_name
from hpcdl.report.run.predictions import network, predicted

NOTE: Final = (
    "Predicted: the same programs in virtual time on one model of the network, whose few costs are fitted to all "
    "measured times at once. Where a row is off, its messages cost more or less than messages of their length "
    "usually do on this machine."
)


def predicted_page(findings: Findings) -> Section:
    """Return each measured time with its prediction, if a network could be fitted."""
    section = predicted_short(findings)
    times = predicted(findings.predicted.rows).tables if findings.predicted else []
    return replace(section, tables=[*section.tables, *times])


def predicted_short(findings: Findings) -> Section:
    """Return the fitted network, and the errors of its predictions by algorithm."""
    title, prediction = "Predicted and measured", findings.predicted
    if prediction is None:
        return Section(title)
    fabric = network(prediction.estimate)
    errors = prediction.estimate.errors
    within, beyond = (percent(errors[name]["median"], 1) for name in ("fitted", "scheme_and_ranks_left_out"))
    line = (
        f"Half of the {errors['fitted']['of']} predicted times are within {within} of the measured ones; of those "
        f"predicted from other algorithms and numbers of ranks only, within {beyond}."
    )
    points = [*fabric.points, *prediction.left_out]
    return Section(
        title, [line, NOTE, *fabric.paragraphs], points, [*fabric.tables, _by_algorithm(prediction.rows)]
    )


NEAR: Final = 0.1
"""Relative error, at most, of a time that a prediction reaches."""


def ratio_of(row: Record) -> float:
    """Return the predicted time of an operation by the measured one."""
    return (row.predicted_seconds or math.nan) / (row.time_p50_seconds or math.nan)


def predicted_answer(findings: Findings) -> Answer | None:
    """Return how many measured times one network explains, and the farthest, if the suite asks for it."""
    prediction = findings.predicted
    rows = prediction.rows if prediction else []
    if "predictions" not in findings.answered_by or prediction is None or not rows:
        return None
    ratios = [1 / ratio_of(row) for row in rows]
    near = sum(abs(ratio - 1) <= NEAR for ratio in ratios)
    ratio, row = max(zip(ratios, rows, strict=True), key=lambda pair: abs(math.log(pair[0])))
    link = prediction.estimate.network.common_link(max(row.ranks for row in rows))
    testbed = findings.run.environment.get("emulated")
    nominal = f" (emulated: {usual_rate(testbed)})" if testbed else ""
    speed = f" with links of {rate(1 / link.beta)}{nominal}" if link and link.beta else ""
    half = percent(prediction.estimate.errors["fitted"]["median"], 1)
    farthest = f"{scheme_name(row)} on {plural(row.ranks, 'rank')}, {digits(ratio)} times as long"
    return Answer(
        f"{near} of {len(rows)} measured times are within {percent(NEAR, 1)} of the schemes' on one network "
        f"that was fitted to them{speed}, half of them within {half}; farthest is {farthest} ({certainty(rows)})."
    )


def _by_algorithm(rows: Sequence[Record]) -> Table:
    ratios: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        ratios.setdefault((scheme_name(row), row.ranks), []).append(ratio_of(row))
    cells = [
        (name, str(ranks), *(digits(ratio) for ratio in (median(group), min(group), max(group))), str(len(group)))
        for (name, ranks), group in sorted(ratios.items(), key=lambda item: -abs(math.log(median(item[1]))))
    ]
    header = ("algorithm", "ranks", "median", "least", "most", "times")
    return Table("Predicted by measured time", header, cells, order="largest error first")


PREDICTED: Final = Declaration(130, predicted_page, predicted_short, rows=30, answer=predicted_answer)
