"""Results published in papers; reports show them next to predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


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
