"""Records put side by side: schemes of one problem, each at several scales, each scale with several seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.analysis.fields import Key, configuration, problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcdl.analysis.scaling import Record

NEAR_LINEAR: Final = 0.90
"""What the lower bound of the efficiency must reach."""


@dataclass(frozen=True)
class Scale:
    """One scheme at one number of ranks: one record per seed."""

    records: list[Record]

    def __getitem__(self, name: str) -> Any:
        """A field that does not depend on the seed."""
        return self.records[0].get(name)

    def values(self, name: str) -> list[float]:
        """What is known of a number, one per seed."""
        return [record[name] for record in self.records if record.get(name) is not None]

    def median(self, name: str) -> float | None:
        """Over seeds; None when unknown."""
        values = self.values(name)
        return float(np.median(values)) if values else None

    def low(self, name: str) -> float | None:
        """The smallest over seeds; None when unknown for any."""
        values = self.values(name)
        return min(values) if len(values) == len(self.records) else None

    def high(self, name: str) -> float | None:
        """The largest over seeds; None when unknown for any."""
        values = self.values(name)
        return max(values) if len(values) == len(self.records) else None

    @property
    def is_base(self) -> bool:
        """Whether this is what the others are compared with."""
        return bool(self["ranks"] == self["base_ranks"])

    @property
    def near_linear(self) -> bool | None:
        """Whether the efficiency's lower bound, the worst over seeds, is at least 0.90; None: unknown."""
        low = self.low("efficiency_low")
        return None if low is None else low >= NEAR_LINEAR


@dataclass(frozen=True)
class Scheme:
    """One way of combining gradients, at rising numbers of ranks."""

    name: str
    scales: list[Scale]

    @property
    def is_ceiling(self) -> bool:
        """Whether it does not communicate at all."""
        return (self.scales[0]["aggregation"] or "none") == "none"


def scheme_name(fields: Any) -> str:
    """The aggregation, with its compression where there is one."""
    aggregation, compression = (fields.get(name) or "none" for name in ("aggregation", "compression"))
    return aggregation if compression == "none" else f"{aggregation} + {compression}"


def problems(records: Iterable[Record]) -> list[list[Scheme]]:
    """Training records by problem, then by scheme, then by ranks ascending; first come, first shown."""
    found: dict[Key, dict[Key, dict[int, list[Record]]]] = {}
    for record in records:
        if (record.get("kind") or "train") == "train":
            schemes = found.setdefault(problem(record), {})
            schemes.setdefault(configuration(record), {}).setdefault(record["ranks"], []).append(record)
    return [
        [
            Scheme(
                scheme_name(next(iter(scales.values()))[0]),
                [Scale(scales[ranks]) for ranks in sorted(scales)],
            )
            for scales in schemes.values()
        ]
        for schemes in found.values()
    ]


def problem_name(schemes: list[Scheme]) -> str:
    """What is trained, in words."""
    one = schemes[0].scales[0]
    batch = {
        "strong": f"strong scaling, global batch {one['global_batch']}",
        "weak": f"weak scaling, {one['batch_per_rank'] or _per_rank(one)} images per rank",
    }.get(one["scaling"], "scaling not stated")
    words = [
        f"{one['model'] or 'unnamed model'} on {one['dataset'] or 'unnamed data'}",
        " ".join(str(one[name]) for name in ("backend", "dtype") if one[name]),
        *(str(one[name]) for name in ("training", "optimizer", "schedule", "configuration") if one[name]),
        "" if one["learning_rate"] is None else f"learning rate {one['learning_rate']:g}",
        _threads(one["threads_per_rank"]),
        batch,
    ]
    return ", ".join(word for word in words if word)


def _per_rank(one: Scale) -> Any:
    whole = one["global_batch"]
    return "equal" if whole is None else whole // one["ranks"]


def _threads(number: Any) -> str:
    return "" if number is None else f"{number} thread{'' if number == 1 else 's'} per rank"
