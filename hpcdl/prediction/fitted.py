"""Network fitted to a run, and predictions for that run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from hpcdl.analysis.run.record import Record
from hpcdl.fabric.network import Network, Site
from hpcdl.prediction.fitting import MAX_MESSAGES, CannotFitError, Fit, fit, seconds, summary
from hpcdl.prediction.network_file import Certainty, PricedNetwork, Vector
from hpcdl.prediction.programs import MeasuredProgram, cheapest, hosts, measured_program, with_shared_ports
from hpcdl.prediction.steps import predicted_steps
from hpcdl.trace.run import Run

CHECKED: Final = 3
"""Smallest number of measured times per cost parameter for a fit in a report."""

MAX_REPORT_MESSAGES: Final = 60_000
"""Most messages that a report simulates for a fit; they take about half a second."""


@dataclass(frozen=True)
class Fitted:
    """Network fitted to a run, with the quality of the fit."""

    fit: Fit
    run: str
    date: str
    library: str
    notes: Sequence[str] = ()
    """Measurements that the fit omits."""
    shared: Sequence[MeasuredProgram] = ()
    """Programs whose messages share ports; they determine only the overhead."""

    @property
    def network(self) -> Network:
        """Return the network, named after the run."""
        source = f"fitted to {len(self.fit.programs)} times of {', '.join(filter(None, (self.run, self.date)))}"
        return replace(self.fit.network, name=f"fitted to {self.run}", source=source)

    @property
    def most_ranks(self) -> int:
        """Return the largest measured number of ranks."""
        return max(program.ranks for program in self.fit.programs)

    @cached_property
    def errors(self) -> dict[str, dict[str, Any]]:
        """Return median and worst error of fitted times, and of times predicted from others."""
        return {
            "fitted": summary(self.fit.errors),
            "scheme_and_ranks_left_out": summary(
                *self.fit.left_out(lambda program: (program.scheme, program.ranks))
            ),
            "ranks_left_out": summary(*self.fit.left_out(lambda program: program.ranks)),
        }

    @cached_property
    def certainty(self) -> Certainty:
        """Return the uncertainty of the cost parameters."""
        known, network = self.fit.certainty, self.network
        predicted = [(program, _seconds(program, network)) for program in self.shared]
        shared = [(program.scheme, time, math.log(time / program.seconds)) for program, time in predicted]
        return replace(known, times=[*known.times, *shared], errors=self.errors, notes=self.notes)

    @property
    def priced(self) -> PricedNetwork:
        """Return the network with the limits of the fit."""
        return PricedNetwork(self.network, self.most_ranks, self.certainty)

    @property
    def origin(self) -> dict[str, Any]:
        """Return the description of the fit in the network file."""
        return {
            "run": self.run,
            "date": self.date,
            "library": self.library,
            "times": len(self.fit.programs),
            "most_ranks": self.most_ranks,
        }


@dataclass(frozen=True)
class RunPrediction:
    """Predictions for a run by a network fitted to the same run."""

    fitted: Fitted
    records: list[Record]
    """All records of the run; the fitted ones and replays have ``predicted_seconds``."""
    rows: list[Record]
    """The fitted records."""
    too_expensive: int
    """Number of measured times omitted because their simulation takes long."""


def fitted(run: Run, programs: Sequence[MeasuredProgram], notes: Sequence[str] = ()) -> Fitted:
    """Fit a network to measured programs, except those whose messages share ports. Raises CannotFitError."""
    serial = [program for program in programs if not program.shares_ports]
    shared = cheapest([program for program in programs if program.shares_ports], MAX_MESSAGES)
    mpi = run.environment.get("mpi")
    library = f"{mpi.get('library', '')} {mpi.get('version', '')}".strip() if isinstance(mpi, dict) else ""
    date = str(run.environment.get("date") or "")
    costs = fit(serial, hosts(run))
    if shared:
        halves = np.linspace(0, costs.network.link.alpha / 2, 5).tolist()
        tried = [replace(costs, layout=replace(costs.layout, site=Site(overhead_seconds=each))) for each in halves]
        costs = min(tried, key=lambda each: np.abs(_logarithms(shared, each.network)).mean())
        names = ", ".join(dict.fromkeys(program.scheme for program in shared))
        occupied = f"a message occupies both its ranks for {costs.network.site.overhead_seconds * 1e6:.3g} us"
        line = f"Left out of the fit: {names} on more than two ranks, whose messages share ports"
        notes = [*notes, f"{line}; a prediction of it divides a port's rate fairly, and {occupied}."]
    return Fitted(costs, run.path.name, date, library, notes, shared)


def _logarithms(programs: Sequence[MeasuredProgram], network: Network) -> Vector:
    """Return the logarithms of predicted by measured times."""
    return np.log(np.array([_seconds(program, network) / program.seconds for program in programs], np.float64))


def _seconds(program: MeasuredProgram, network: Network) -> float:
    return seconds(program, with_shared_ports(network, program.ranks, shares=program.shares_ports))


def with_own_cores(measured: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Return the records whose ranks have their own cores, and notes on omitted and on disturbed ones.

    An oversubscribed rank waits for its core, which is not a cost of the network. Emulated hosts also share cores;
    there the limited rate of the links dominates, and all records are kept.
    """
    shared = {record.ranks for record in measured if record.oversubscribed and not record.emulated}
    kept = [record for record in measured if record.network or record.ranks not in shared]
    notes = []
    if len(kept) < len(measured):
        ranks = ", ".join(map(str, sorted(shared)))
        cases = f"{len(measured) - len(kept)} of {len(measured)} cases"
        notes.append(f"Left out of the fit: {cases}, on {ranks} oversubscribed ranks.")
    if disturbed := sum(bool(record.disturbed) for record in kept):
        notes.append(f"DISTURBED: {disturbed} of {len(kept)} measured cases, whose times may be too long.")
    return kept, notes


def predict_run(run: Run, measured: Sequence[Record]) -> RunPrediction | None:
    """Fit a network to the ``measured`` records of a run and predict them, within seconds.

    Returns None for fewer than :data:`CHECKED` measured times per cost parameter.
    """
    kept, notes = with_own_cores(measured)
    free = set(map(id, kept))
    known = [
        (place, program)
        for place, record in enumerate(measured)
        if id(record) in free and (program := _known(record))
    ]
    places = {id(program): place for place, program in known}
    chosen = cheapest([program for _, program in known], MAX_REPORT_MESSAGES)
    try:
        explained = fitted(run, chosen, notes)
    except CannotFitError:
        return None
    # As many costs as times would explain any times, and the page would show errors of 0.
    if len(explained.fit.programs) < CHECKED * len(explained.fit.determined):
        return None
    predicted = [replace(record) for record in measured]
    rows = [predicted[places[id(program)]] for program in chosen]
    for row, program in zip(rows, chosen, strict=True):
        row.predicted_seconds = _seconds(program, explained.network)
    replays = [row for row in predicted if row.kind == "replay" and not row.network and not row.error]
    given = lambda record, _spec: record.spec.compute_times
    steps, _ = predicted_steps(replays, given, PricedNetwork(explained.network))
    by_case = {row.case: row.predicted_seconds for row in steps}
    for row in replays:
        row.predicted_seconds = by_case.get(row.case)
    return RunPrediction(explained, predicted, rows, len(known) - len(chosen))


def _known(record: Record) -> MeasuredProgram | None:
    if ":" in str(record.aggregation):  # a user's own scheme may not be simulated here
        return None
    try:
        return measured_program(record)
    except ValueError:  # a scheme of another version
        return None
