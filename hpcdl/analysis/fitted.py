"""A run's own network: fitted to what it measured, and beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.cells import cell_of, cheapest, hosts
from hpcdl.analysis.fitting import CannotFitError, Fit, fit, summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.cells import Cell
    from hpcdl.analysis.scaling import Record
    from hpcdl.fabric.network import Network
    from hpcdl.trace.run import Run

CHECKED: Final = 3
"""Measured times for each price of a network that a report fits."""

AFFORDABLE: Final = 60_000
"""Messages that a report simulates at a time: half a second or so."""


@dataclass(frozen=True)
class Fitted:
    """A network that explains a run, and how well."""

    found: Fit
    run: str
    date: str
    library: str

    @property
    def network(self) -> Network:
        """Named after the run."""
        source = f"fitted to {len(self.found.cells)} times of {', '.join(filter(None, (self.run, self.date)))}"
        return replace(self.found.network, name=f"fitted to {self.run}", source=source)

    @property
    def most_ranks(self) -> int:
        """The largest number of ranks it has seen."""
        return max(cell.ranks for cell in self.found.cells)

    @cached_property
    def errors(self) -> dict[str, dict[str, Any]]:
        """Median and worst relative error of the times themselves, and of times predicted from the others'."""
        return {
            "fitted": summary(self.found.errors),
            "scheme_and_ranks_left_out": summary(self.found.left_out(lambda cell: (cell.scheme, cell.ranks))),
            "ranks_left_out": summary(self.found.left_out(lambda cell: cell.ranks)),
        }

    @property
    def origin(self) -> dict[str, Any]:
        """What a file of this network says about it."""
        each = {
            f"{what}_{which}": self.errors[what][which] for what in self.errors for which in ("median", "worst")
        }
        return {
            "run": self.run,
            "date": self.date,
            "library": self.library,
            "times": len(self.found.cells),
            "most_ranks": self.most_ranks,
            **{f"error_{name}": value for name, value in each.items()},
        }


@dataclass(frozen=True)
class Beside:
    """What a network fitted to a run says of the run."""

    fitted: Fitted
    records: list[Record]
    """All of the run's; those to whose times it was fitted hold ``predicted_seconds``."""
    rows: list[Record]
    """Those alone."""
    dear: int
    """Measured times that were left out because simulating them takes long."""


def fitted(run: Run, cells: Sequence[Cell]) -> Fitted:
    """Fit a network to the run's cells. Raises CannotFitError."""
    mpi = run.environment.get("mpi")
    library = f"{mpi.get('library', '')} {mpi.get('version', '')}".strip() if isinstance(mpi, dict) else ""
    return Fitted(fit(cells, hosts(run)), run.path.name, str(run.environment.get("date") or ""), library)


def beside(run: Run, measured: Sequence[Record]) -> Beside | None:
    """Fit a network to the ``measured`` records of a run, within seconds.

    None where too little was measured to check a network by: fewer than :data:`CHECKED` times for each price.
    """
    known = [(place, cell) for place, record in enumerate(measured) if (cell := _known(record))]
    places = {id(cell): place for place, cell in known}
    chosen = cheapest([cell for _, cell in known], AFFORDABLE)
    try:
        explained = fitted(run, chosen)
    except CannotFitError:
        return None
    if len(chosen) < CHECKED * len(explained.found.pays):
        return None
    told = [dict(record) for record in measured]
    rows = [told[places[id(cell)]] for cell in chosen]
    for row, seconds in zip(rows, explained.found.predicted.tolist(), strict=True):
        row["predicted_seconds"] = seconds
    return Beside(explained, told, rows, len(known) - len(chosen))


def _known(record: Record) -> Cell | None:
    if ":" in str(record["aggregation"]):  # somebody's own: nobody knows what else it does
        return None
    try:
        return cell_of(record)
    except ValueError:  # a scheme of another version
        return None
