"""Predictions of a fitted network and measured times."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.launch.testbed import bit_rate, usual_rate
from hpcdl.report.formats.cells import percent, plural, signed, volume
from hpcdl.report.formats.document import Section
from hpcdl.report.formats.tables import Table
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.literature import title_of
from hpcdl.report.run.method_names import scheme_name
from hpcdl.report.run.predicted_answers import off, ratio
from hpcdl.report.run.predictions import legend, network, predicted

NOTE: Final = (
    "Predicted times are those of a simulation of the same programs on one model of the network. Its few cost "
    "parameters are fitted to all measured times. If a prediction is far off, the messages of this row take more "
    "or less time than other messages of their length on this machine."
)


def predicted_page(findings: Findings) -> Section:
    """Return each measured time with its prediction, if a network could be fitted."""
    section, rows = predicted_short(findings), findings.predicted.rows if findings.predicted else []
    paragraphs, tables = [*section.paragraphs, *legend(rows)], [*section.tables, *predicted(rows).tables]
    return replace(section, paragraphs=paragraphs, tables=tables)


def predicted_short(findings: Findings) -> Section:
    """Return the fitted network, and the errors of its predictions by algorithm."""
    title, prediction = "Predicted and measured", findings.predicted
    if prediction is None:
        return Section(title)
    fabric = network(prediction.estimate)
    errors = prediction.estimate.errors
    within, beyond = (percent(errors[name]["median"], 1) for name in ("fitted", "scheme_and_ranks_left_out"))
    line = (
        f"Half of the {errors['fitted']['of']} predicted times are within {within} of the measured ones, and "
        f"within {beyond} if each algorithm and number of ranks is predicted from the others."
    )
    points, tables = [*fabric.points, *prediction.left_out], [_by_algorithm(prediction.rows), *fabric.tables]
    return Section(title, [line, NOTE, *fabric.paragraphs], points, tables)


def predicted_answer(findings: Findings) -> Answer | None:
    """Return how many measured times one network explains, and the farthest, if the suite asks for it."""
    prediction = findings.predicted
    rows = prediction.rows if prediction else []
    if "predictions" not in findings.answered_by or prediction is None or not rows:
        return None
    ratios = [ratio(row) or math.nan for row in rows]
    near = sum(abs(each - 1) <= 0.1 for each in ratios)
    each, far = max(zip(ratios, rows, strict=True), key=lambda pair: abs(math.log(pair[0])))
    what = f"{volume(far.message_bytes)} with {title_of(scheme_name(far))} on {plural(far.ranks, 'rank')}"
    link = prediction.estimate.network.common_link(max(row.ranks for row in rows))
    half, details = percent(prediction.estimate.errors["fitted"]["median"], 1), list[str]()
    if link and link.beta and (testbed := findings.run.environment.get("emulated")):
        rates = bit_rate(round(8 / link.beta, -6)), usual_rate(testbed)
        details.append("The links of the fitted network carry {}, and the emulated ones {}.".format(*rates))
    return Answer(
        f"One network model predicts {near} of {len(rows)} measured times within 10 %.",
        [
            f"The worst prediction, for {what}, is {off(each)}.",
            f"Half of the predictions are within {half} of the measured times.",
            *details,
        ],
        rows,
    )


def _by_algorithm(rows: Sequence[Record]) -> Table:
    ratios: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        ratios.setdefault((scheme_name(row), row.ranks), []).append(ratio(row) or math.nan)
    cells = [
        (name, str(ranks), *map(signed, (median(group), min(group), max(group))), str(len(group)))
        for (name, ranks), group in sorted(ratios.items(), key=lambda item: -abs(math.log(median(item[1]))))
    ]
    header = ("algorithm", "ranks", "median", "lowest", "highest", "times")
    return Table("Error of predictions by algorithm", header, cells, order="largest error first")


PREDICTED: Final = Declaration(130, predicted_page, predicted_short, rows=30, answer=predicted_answer)
