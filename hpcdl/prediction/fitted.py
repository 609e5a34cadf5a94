"""Network fitted to a run, and predictions for that run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hpcdl.analysis.run.record import Record
from hpcdl.fabric.network import Network, Site
from hpcdl.prediction.fitting import MAX_MESSAGES, CannotFitError, fit, summary
from hpcdl.prediction.network_file import PricedNetwork
from hpcdl.prediction.programs import MeasuredProgram, cheapest, hosts, measured_programs
from hpcdl.prediction.steps import predicted_steps
from hpcdl.trace.run import Run

CHECKED: Final = 3
"""Smallest number of measured times per cost parameter for a fit in a report."""

MAX_REPORT_MESSAGES: Final = 60_000
"""Most messages that a report simulates for a fit; they take about half a second."""


@dataclass(frozen=True)
class RunPrediction:
    """Predictions for a run by a network fitted to the same run."""

    priced: PricedNetwork
    records: list[Record]
    """All records of the run; the fitted ones and replays have ``predicted_seconds``."""
    rows: list[Record]
    """The fitted records."""
    too_expensive: int
    """Number of measured times omitted because their simulation takes long."""


def fitted(run: Run, programs: Sequence[MeasuredProgram], notes: Sequence[str] = ()) -> PricedNetwork:
    """Return the network fitted to measured programs of a run, with ``notes`` on those that are left out.

    Programs whose messages share ports determine only the overhead of a message. Raises CannotFitError.
    """
    serial = [program for program in programs if not program.shares_ports]
    shared = cheapest([program for program in programs if program.shares_ports], MAX_MESSAGES)
    costs = fit(serial, hosts(run))
    if shared:
        halves = np.linspace(0, costs.network.link.alpha / 2, 5).tolist()
        tried = [replace(costs, layout=replace(costs.layout, site=Site(overhead_seconds=each))) for each in halves]
        costs = min(tried, key=lambda each: sum(abs(error) for *_, error in _times(shared, each.network)))
        names = ", ".join(dict.fromkeys(program.scheme for program in shared))
        occupied = f"a message occupies both its ranks for {costs.network.site.overhead_seconds * 1e6:.3g} us"
        line = f"Left out of the fit: {names} on more than two ranks, whose messages share ports"
        notes = [*notes, f"{line}; a prediction of it divides a port's rate fairly, and {occupied}."]
    errors = {
        "fitted": summary(costs.errors),
        "scheme_and_ranks_left_out": summary(*costs.left_out(lambda program: (program.scheme, program.ranks))),
        "ranks_left_out": summary(*costs.left_out(lambda program: program.ranks)),
    }
    times = [*costs.certainty.times, *_times(shared, costs.network)]
    certainty = replace(costs.certainty, times=times, errors=errors, notes=notes)
    name, date, mpi = run.path.name, str(run.environment.get("date") or ""), run.environment.get("mpi")
    library = f"{mpi.get('library', '')} {mpi.get('version', '')}".strip() if isinstance(mpi, dict) else ""
    most_ranks = max(program.ranks for program in serial)
    origin = {"run": name, "date": date, "library": library, "times": len(serial), "most_ranks": most_ranks}
    source = f"fitted to {len(serial)} times of {', '.join(filter(None, (name, date)))}"
    network = replace(costs.network, name=f"fitted to {name}", source=source)
    return PricedNetwork(network, most_ranks, certainty, origin)


def _times(programs: Sequence[MeasuredProgram], network: Network) -> list[tuple[str, float, float]]:
    """Return scheme, time on ``network`` (s), and logarithm of predicted by measured time, of each program."""
    predicted = [(program, program.predicted(network)) for program in programs]
    return [(program.scheme, time, math.log(time / program.seconds)) for program, time in predicted]


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
    predicted = [replace(record) for record in measured]
    kept, notes = with_own_cores(predicted)
    programs = [program for record in kept for program in _simulable(record)]
    chosen = cheapest(programs, MAX_REPORT_MESSAGES)
    try:
        priced = fitted(run, chosen, notes)
    except CannotFitError:
        return None
    # As many costs as times would explain any times, and the page would show errors of 0.
    if priced.certainty and priced.origin["times"] < CHECKED * len(priced.certainty.determined):
        return None
    for program in chosen:
        program.record.predicted_seconds = program.predicted(priced.network)
    measured_steps = [record for record in predicted if not record.network and not record.error]
    replays = [record for record in measured_steps if record.kind == "replay"]
    given = lambda record, _spec: record.spec.compute_times
    steps, _ = predicted_steps(replays, given, PricedNetwork(priced.network))
    by_case = {step.case: step.predicted_seconds for step in steps}
    for record in replays:
        record.predicted_seconds = by_case.get(record.case)
    return RunPrediction(priced, predicted, [program.record for program in chosen], len(programs) - len(chosen))


def _simulable(record: Record) -> list[MeasuredProgram]:
    """Return the program of a record that can be simulated here."""
    if ":" in str(record.aggregation):  # a user's own scheme may not be simulated here
        return []
    try:
        return measured_programs([record])
    except ValueError:  # a scheme of another version
        return []
