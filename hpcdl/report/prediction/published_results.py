"""Results of a paper next to predicted ones."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from hpcdl import registry
from hpcdl.cases.spec.compute_times import DEVICES, at_rate
from hpcdl.nn.volumes import FLOAT_BYTES, volumes
from hpcdl.prediction.published_results import PUBLISHED
from hpcdl.report.formats.cells import NONE, digits, seconds
from hpcdl.report.formats.document import Section, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.run.scaling import Record
    from hpcdl.prediction.published_results import PublishedResults, Speedup


BY_PAPER = "reported by the paper"


def reported(rows: Sequence[Record]) -> Section:
    """The paper's figures for the suite of ``rows``; nothing for a suite that asks no paper's question."""
    paper = PUBLISHED.get(str(rows[0].get("suite"))) if rows else None
    if paper is None:
        return Section("Reported by a paper")
    times = {(row["aggregation"], row["message_bytes"], row["ranks"]): row["predicted_seconds"] for row in rows}
    updates = [
        (scheme, str(ranks), digits(figure), _inverse(times.get((scheme, paper.updates_bytes, ranks))))
        for scheme, figures in paper.updates_per_second.items()
        for ranks, figure in figures.items()
    ]
    speedups = [_speedup(one, paper, times) for one in paper.speedups]
    device = DEVICES[paper.device]
    notes = (
        f"{paper.source}. Its figures were measured on its machine; ours are predicted here, with nothing fitted "
        f"to them, and count the way back of the sums. {paper.schemes_note} "
        f"Our speed-ups are those of a step: the arithmetic at {device.flops / 1e12:g} TFLOP/s, a {paper.device} "
        f"({device.source}), then the sum of the gradients by {paper.speedup_scheme}, one after the other."
    )
    heading = f"{BY_PAPER}, {paper.updates_note}"
    tables = [
        Table("Sums a second", ("algorithm", "ranks", heading, "predicted here"), updates, 1),
        Table(
            f"Speed-up over one GPU ({paper.speedups_note})",
            ("model", "ranks", "batch", BY_PAPER, "predicted here", "our step", "of it arithmetic"),
            speedups,
        ),
    ]
    return Section("Reported by a paper", [notes], tables=tables)


def _inverse(time: float | None) -> str:
    return digits(1 / time) if time else NONE


def _speedup(one: Speedup, paper: PublishedResults, times: dict[tuple[str, int, int], float]) -> tuple[str, ...]:
    model = registry.find("models", one.model)
    shape, classes = (p.default for p in list(inspect.signature(model).parameters.values())[:2])
    layers = model(shape, classes)
    alone = at_rate(layers, shape, DEVICES[paper.device].flops).step_seconds(one.batch)
    size = FLOAT_BYTES * volumes(layers, shape, 1).parameters
    sums = times.get((paper.speedup_scheme, size, one.ranks))
    words = (one.model, str(one.ranks), str(one.batch), f"{one.reported:g}x")
    if sums is None:
        return (*words, NONE, NONE, NONE)
    step = alone / one.ranks + sums
    return (*words, f"{digits(alone / step)}x", seconds(step), seconds(alone / one.ranks))
