"""Figures that papers report, to stand beside predictions and never among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Speedup:
    """A whole training on several GPUs against one."""

    model: str
    ranks: int
    batch: int
    reported: float


@dataclass(frozen=True)
class Reported:
    """What one paper says."""

    source: str
    updates_bytes: int
    """Size of the gradient whose sums were counted."""
    updates_per_second: Mapping[str, Mapping[int, float]]
    """Sums a second, nothing else being done, by scheme and ranks."""
    updates_note: str
    device: str
    """Of :data:`hpcdl.analysis.compute_times.DEVICES`."""
    speedup_scheme: str
    speedups: tuple[Speedup, ...]
    speedups_note: str


REPORTED: Final = {
    "firecaffe-cluster": Reported(
        source="Iandola, Moskewicz, Ashraf & Keutzer 2016, FireCaffe (arXiv 1511.00175)",
        updates_bytes=30_380_704,
        updates_per_second={
            "parameter_server": {2: 95, 4: 15.5, 8: 6, 16: 3, 32: 1.3, 64: 0.7, 128: 0.4},
            "tree": {2: 68, 4: 42, 8: 36, 16: 23, 32: 16.5, 64: 14.3, 128: 14.5},
        },
        updates_note="read off a plot, +-10 %",
        device="k20",
        speedup_scheme="tree",
        speedups=(
            Speedup("googlenet", 32, 1024, 20),
            Speedup("googlenet", 128, 1024, 47),
            Speedup("nin", 32, 1024, 23),
            Speedup("nin", 128, 1024, 39),
        ),
        speedups_note="whole trainings, which differ in epochs too; those of NiN are less certain",
    ),
}
"""By the name of the suite that asks the paper's question."""
