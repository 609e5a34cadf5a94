"""Results of a paper next to predicted ones."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hpcdl import registry
from hpcdl.cases.spec.compute_times import DEVICES, at_rate
from hpcdl.nn.volumes import FLOAT_BYTES, volumes
from hpcdl.report.formats.cells import NONE, digits, seconds
from hpcdl.report.formats.document import Section, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.run.scaling import Record


@dataclass(frozen=True)
class Speedup:
    """Published speedup of a whole training on several GPUs over one."""

    model: str
    ranks: int
    batch: int
    reported: float


@dataclass(frozen=True)
class PublishedResults:
    """Results of one paper."""

    source: str
    updates_bytes: int
    """Size of the gradient whose sums were counted (bytes)."""
    updates_per_second: Mapping[str, Mapping[int, float]]
    """Sums per second without other work, by scheme and ranks."""
    updates_note: str
    schemes_note: str
    """Correspondence of the paper's schemes and ours."""
    device: str
    """Key of :data:`hpcdl.cases.spec.compute_times.DEVICES`."""
    speedup_scheme: str
    speedups: tuple[Speedup, ...]
    speedups_note: str


_REDUCTION_TREE: Final = {2: 68, 4: 42, 8: 36, 16: 23, 32: 16.5, 64: 14.3, 128: 14.5}
"""FireCaffe's sums per second by reduction tree, by ranks."""

PUBLISHED: Final = {
    "firecaffe-cluster": PublishedResults(
        source="Iandola, Moskewicz, Ashraf & Keutzer 2016, FireCaffe (arXiv 1511.00175)",
        updates_bytes=30_380_704,
        updates_per_second={
            "parameter_server": {2: 95, 4: 15.5, 8: 6, 16: 3, 32: 1.3, 64: 0.7, 128: 0.4},
            "binomial": _REDUCTION_TREE,
            "tree": _REDUCTION_TREE,
        },
        updates_note="read off a plot, +-10 %",
        schemes_note="The paper's reduction tree is compared with two of our schemes: binomial costs the paper's "
        "2 log2(p) n/BW; tree, a binary tree whose nodes have one port, costs 4(log2(p + 1) - 1) n/BW.",
        device="k20",
        speedup_scheme="binomial",
        speedups=(
            Speedup("googlenet", 32, 1024, 20),
            Speedup("googlenet", 128, 1024, 47),
            Speedup("nin", 32, 1024, 23),
            Speedup("nin", 128, 1024, 39),
        ),
        speedups_note="whole trainings, which differ in epochs too; those of NiN are less certain",
    ),
}
"""Published results by the name of the suite that repeats the paper's experiment."""


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
