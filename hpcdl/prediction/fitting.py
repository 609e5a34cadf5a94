"""Fit of alpha, beta and gamma to measured times, through the simulation itself.

A simulated time is the longest chain of messages and reductions, so it is piecewise linear in the cost parameters
("costs"): near any network it is ``coefficients @ costs``. One simulation with dual numbers gives the
coefficients. A linear fit to the measured times gives the costs. Both alternate until nothing changes
(Gauss-Newton method, whose linear pieces are exact here). The error is the logarithm of predicted / measured time,
so factors 2 and 1/2 count equally. Costs are not negative (Lawson & Hanson, Solving Least Squares Problems, 1974,
chapter 23). Outliers count less (Huber 1964).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import Any, Final, Self

import numpy as np

from hpcdl.analysis.run.record import Record
from hpcdl.fabric.network import EVERY_RANK, SEGMENTS, Link, Network, Site
from hpcdl.prediction.network_file import COSTS, PLAIN, Certainty, Matrix, NetworkEstimate, Vector, origin_of
from hpcdl.prediction.programs import MeasuredProgram, Program, cheapest
from hpcdl.trace.run import Run


class Dual(float):
    """A number and its derivatives by some variables.

    Addition, and multiplication and division by plain numbers, keep derivatives. ``max`` and other selections
    return one of their arguments unchanged. All other operations return plain numbers.
    """

    __slots__ = ("slope",)

    slope: tuple[float, ...]

    def __new__(cls, value: float, slope: tuple[float, ...]) -> Self:
        """Create a number ``value`` with derivatives ``slope``."""
        made = super().__new__(cls, value)
        made.slope = slope
        return made

    def __add__(self, other: float) -> Dual:
        """Add values and derivatives; a plain number has derivatives 0."""
        slope = tuple(map(add, self.slope, other.slope)) if type(other) is Dual else self.slope
        return Dual(float.__add__(self, other), slope)

    __radd__ = __add__

    def __mul__(self, number: float) -> Dual:
        """Multiply by a plain number."""
        return Dual(float.__mul__(self, number), tuple([number * derivative for derivative in self.slope]))

    __rmul__ = __mul__

    def __truediv__(self, number: float) -> Dual:
        """Divide by a plain number."""
        return self * (1 / number)


BEGIN: Final = np.array([1e-5, 1e-9, 1e-10, 1e-6, 1e-10, 1e-6, 1e-6, 1e-11, *[1e-10] * len(SEGMENTS)])
"""Initial costs, in the order of :data:`hpcdl.prediction.network_file.COSTS`; any order of magnitude works."""
MAX_MESSAGES: Final = 10_000
"""Most messages simulated per iteration; programs beyond it count only in the last one."""
MAX_RATIO: Final = 100
"""Largest ratio of predicted and measured time that increases an error."""
PATIENCE: Final = 5
"""Consecutive iterations with less than 1 % improvement after which the fit stops."""


class CannotFitError(Exception):
    """Too few measurements for a fit. One line."""


@dataclass(frozen=True)
class Fit:
    """Costs fitted to measured programs."""

    programs: Sequence[MeasuredProgram]
    costs: Vector
    """Costs in the order of :data:`COSTS`; 0 for those that no program depends on."""
    coefficients: Matrix
    """(programs, costs): derivatives of each program's time."""
    layout: Network
    """Placement of the ranks; its costs are not used."""

    @property
    def measured(self) -> Vector:
        """Return the measured times (s), (programs,)."""
        return np.array([program.seconds for program in self.programs])

    @property
    def network(self) -> Network:
        """Return the network with these costs."""
        return with_costs(self.layout, self.costs.tolist())

    @property
    def determined(self) -> list[str]:
        """Return the costs that some program depends on."""
        return [COSTS[cost] for cost in np.flatnonzero(self.coefficients.sum(axis=0))]

    @property
    def information(self) -> Matrix:
        """Return (costs, costs): see :class:`hpcdl.prediction.network_file.Certainty`."""
        rows = self.coefficients / self.measured[:, None]
        spare = len(self.programs) / max(len(self.programs) - len(self.determined), 1)
        usual = max(float(np.median(np.abs(self.errors))) / 0.6745 * spare**0.5, 1e-3)  # no time is exact
        return np.asarray(rows.T @ rows / usual**2, np.float64)

    @property
    def predicted(self) -> Vector:
        """Return the times on the fitted network (s), (programs,)."""
        return self.coefficients @ self.costs

    @property
    def errors(self) -> Vector:
        """Return the relative errors of the fitted times, (programs,)."""
        return self.predicted / self.measured - 1

    @property
    def certainty(self) -> Certainty:
        """Return the uncertainty of the costs, with the errors of the fitted times."""
        return Certainty(self.costs, self.information, times=self.rows(self.errors))

    def rows(self, errors: Vector) -> list[tuple[str, float, float]]:
        """Return scheme, fitted time (s), and logarithm of 1 + relative error, of each time with a known one."""
        rows = zip(self.programs, self.predicted.tolist(), errors.tolist(), strict=True)
        return [(case.scheme, time, math.log1p(error)) for case, time, error in rows if time > 0 and error > -1]

    def left_out(self, group_of: Callable[[MeasuredProgram], Hashable]) -> tuple[Vector, Vector]:
        """Return results of cross-validation, (programs,): each group is predicted from a fit to all others.

        They are the relative errors, and the margins of the 95 % intervals of the times' logarithms; NaN where a
        program depends on a cost that no other group depends on.
        """
        errors, margins = np.full((2, len(self.programs)), np.nan)
        groups = [group_of(program) for program in self.programs]
        measured = self.measured
        for group in dict.fromkeys(groups):
            mine = np.array([other == group for other in groups])
            missing = self.coefficients[~mine].sum(axis=0) == 0
            predictable = self.coefficients[:, missing].sum(axis=1) == 0
            if (~mine).sum() >= (~missing).sum() and predictable[mine].any():
                costs = solve(self.coefficients[~mine], measured[~mine])
                others = [program for program, left_out in zip(self.programs, mine, strict=True) if not left_out]
                fit = replace(self, programs=others, costs=costs, coefficients=self.coefficients[~mine])
                certainty = fit.certainty
                for index in map(int, np.flatnonzero(mine & predictable)):
                    program = self.programs[index]
                    time = program.predicted(fit.network)
                    errors[index] = time / measured[index] - 1
                    margin = certainty.margin(self.coefficients[index])
                    margins[index] = math.hypot(margin, certainty.error_of(program.scheme, time))
        return errors, margins


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
        part = f"{disturbed} of {len(kept)} measured cases"
        notes.append(f"Other load disturbed {part}; their times may be too long.")
    return kept, notes


def fitted(
    run: Run, programs: Sequence[MeasuredProgram], notes: Sequence[str] = (), least: int = 0
) -> NetworkEstimate:
    """Return the network fitted to measured programs of a run, with ``notes`` on those that are left out.

    Programs whose messages share ports determine only the overhead of a message. Raises CannotFitError for fewer
    times than costs, or than ``least`` for each cost.
    """
    serial = [program for program in programs if not program.shares_ports]
    shared = cheapest([program for program in programs if program.shares_ports], MAX_MESSAGES)
    hosts = [str(rank.get("hostname", "")) for rank in run.environment.get("ranks") or []]
    costs = fit(serial, [*map([*dict.fromkeys(hosts)].index, hosts)])
    if len(serial) < least * len(costs.determined):
        raise CannotFitError(f"{len(serial)} measured times are too few to show their errors")
    if shared:
        sites = (Site(overhead_seconds=each) for each in np.linspace(0, costs.network.link.alpha / 2, 5).tolist())
        tried = [replace(costs, layout=replace(costs.layout, site=site)) for site in sites]
        costs = min(tried, key=lambda each: sum(abs(error) for *_, error in _times(shared, each.network)))
        names = ", ".join(dict.fromkeys(program.scheme for program in shared))
        occupied = f"a message occupies both its ranks for {costs.network.site.overhead_seconds * 1e6:.3g} us"
        line = f"Left out of the fit: {names} on more than two ranks, whose messages share ports"
        notes = [*notes, f"{line}; a prediction of it divides a port's rate fairly, and {occupied}."]
    by_ranks = costs.left_out(lambda program: program.ranks)
    errors = {
        "fitted": summary(costs.errors),
        "scheme_and_ranks_left_out": summary(*costs.left_out(lambda program: (program.scheme, program.ranks))),
        "ranks_left_out": summary(*by_ranks),
    }
    times = [*costs.certainty.times, *_times(shared, costs.network)]
    ranks = np.array([program.ranks for program in serial])
    fewer, most_ranks = np.unique([1, *ranks])[-2:].tolist()
    off = np.where(ranks == most_ranks, by_ranks[0], np.nan)
    growth = costs.rows((1 + off) ** (1 / math.log(most_ranks / fewer)) - 1)
    certainty = replace(costs.certainty, times=times, errors=errors, notes=notes, growth=growth)
    name, mpi, here = run.path.name, run.environment.get("mpi"), origin_of(run)
    library = f"{mpi.get('library', '')} {mpi.get('version', '')}".strip() if isinstance(mpi, dict) else ""
    origin = {**here, "library": library, "times": len(serial), "most_ranks": most_ranks}
    source = f"fitted to {len(serial)} times of {', '.join(filter(None, (name, here['date'])))}"
    network = replace(costs.network, name=f"fitted to {name}", source=source)
    return NetworkEstimate(network, most_ranks, certainty, origin)


def _times(programs: Sequence[MeasuredProgram], network: Network) -> list[tuple[str, float, float]]:
    """Return scheme, time on ``network`` (s), and logarithm of predicted / measured time, of each program."""
    predicted = [(program, program.predicted(network)) for program in programs]
    return [(program.scheme, time, math.log(time / program.seconds)) for program, time in predicted]


def fit(programs: Sequence[MeasuredProgram], hosts: Sequence[int] = ()) -> Fit:
    """Fit a network of plain links to ``programs``, whose ranks are on ``hosts``; default: one host.

    Raises CannotFitError if there are fewer programs than costs.
    """
    layout = _layout(hosts)
    begin = linearised(programs, layout, BEGIN[:PLAIN])
    if len(programs) < (needed := max(len(begin.determined), 1)):
        raise CannotFitError(f"{len(programs)} measured collectives and exchanges cannot determine {needed} costs")
    light = linearised(cheapest(programs, MAX_MESSAGES), layout, BEGIN[:PLAIN])
    if len(light.programs) < 4 * needed or light.determined != begin.determined:
        light = begin
    squares = _descend(light, robust=False)  # starting with the robust error could treat most programs as outliers
    return linearised(programs, layout, _descend(squares, robust=True).costs)


def _descend(best: Fit, *, robust: bool) -> Fit:
    """Iterate from ``best``; halve a step that increases the errors, because it reaches another linear piece."""
    patience, off = PATIENCE, _size(best.errors, robust=robust)
    aim = solve(best.coefficients, best.measured, robust=robust)
    while patience and not np.allclose(aim, best.costs, rtol=1e-7, atol=0):
        tried = linearised(best.programs, best.layout, aim)
        if (size := _size(tried.errors, robust=robust)) < off:
            patience = PATIENCE if size < 0.99 * off else patience - 1
            best, off = tried, size
            aim = solve(best.coefficients, best.measured, robust=robust)
        else:
            patience -= 1
            aim = (aim + best.costs) / 2
    return best


def _size(errors: Vector, *, robust: bool) -> float:
    logarithms = np.log((1 + errors).clip(1 / MAX_RATIO, MAX_RATIO))
    return float(np.mean(np.abs(logarithms) if robust else logarithms**2))


def linearised(programs: Sequence[MeasuredProgram], layout: Network, costs: Vector) -> Fit:
    """Return the derivatives of the times at ``costs``, of plain links or of detailed ones."""
    slopes = _derivatives(lambda network: [program.predicted(network) for program in programs], layout, costs)
    return Fit(programs, costs, slopes, layout)


def _derivatives(times: Callable[[Network], Sequence[float]], layout: Network, costs: Vector) -> Matrix:
    """Return (times, costs): the derivatives of the ``times`` on a network at ``costs``."""
    # a lower bound of simulated costs breaks ties between chains of equal length
    count = len(costs)
    duals = zip(costs.clip(1e-4 * BEGIN[:count]).tolist(), np.eye(count).tolist(), strict=True)
    network = with_costs(layout, [Dual(cost, tuple(slope)) for cost, slope in duals])
    slopes = [getattr(time, "slope", (0.0,) * count) for time in times(network)]
    return np.array(slopes).reshape(-1, count)


def uncertainty(
    program: Program, estimate: NetworkEstimate, scheme: str, calls: int = 1, whole: float | None = None
) -> tuple[float, bool]:
    """Return half the 95 % interval of the logarithm of a predicted time; NaN if the network is not fitted.

    The time is that of ``program``, or of a ``whole`` (s) with so many ``calls`` of it in which all else is exact.
    The interval has the uncertainty of the costs, the errors of the ``scheme`` in the fit, and beyond the measured
    ranks the error that grew up to them. Also return True if an undetermined cost makes the time uncertain by more
    than 10 %. The network's topology is left out, because its flows carry no derivatives.
    """
    certainty = estimate.certainty
    if certainty is None:
        return math.nan, False
    layout = replace(estimate.network, topology=None)
    slopes = _derivatives(lambda network: [program.simulate(network).seconds], layout, certainty.costs)
    time, margin = float((slopes @ certainty.costs)[0]), certainty.margin(slopes[0])
    share = 1.0 if whole is None else calls * time / whole if whole else 0.0
    half = math.hypot(margin, certainty.error_of(scheme, time))
    half += max(math.log(estimate.distance(program.ranks) or 1), 0) * certainty.growth_of(scheme, time)
    return share * half, bool(certainty.undetermined) and share * margin > 0.1


def _layout(hosts: Sequence[int]) -> Network:
    one = Network("fitted", Link(0.0, 0.0), source="", ranks_per_host=EVERY_RANK)
    most = max(map(list(hosts).count, hosts), default=0)
    return replace(one, ranks_per_host=most, hosts=tuple(hosts)) if len(set(hosts)) > 1 else one


def with_costs(layout: Network, costs: Sequence[float]) -> Network:
    """Return the network with these costs, in the order of :data:`hpcdl.prediction.network_file.COSTS`.

    Those of a detailed link may be left out; it has an overhead if the link of ``layout`` has one.
    """
    alpha, beta, gamma, inside_alpha, inside_beta, *detailed = costs
    inside, link = Link(inside_alpha, inside_beta), Link(alpha, beta)
    if detailed:
        overhead, distance_alpha, distance_beta, *extra = detailed
        occupied = None if layout.link.overhead is None else overhead
        link = Link(alpha, beta, occupied, distance_alpha, distance_beta, tuple(extra))
    return replace(layout, link=inside if layout.is_one_host else link, gamma=gamma, inside=inside)


def solve(coefficients: Matrix, measured: Vector, *, robust: bool = True) -> Vector:
    """Return non-negative costs that minimise the logarithmic errors: their absolute (robust) or squared values.

    A cost that no program depends on is 0.
    """
    from scipy.optimize import nnls  # late: takes half a second

    rows = coefficients / measured[:, None]
    size = np.linalg.norm(rows, axis=0)
    size[size == 0] = 1
    weights = np.ones(len(rows))
    costs = np.zeros(len(size))
    for _ in range(100):
        following, _ = nnls(rows / size * weights[:, None], weights, maxiter=100)
        if np.allclose(following, costs, rtol=1e-9, atol=0):
            break
        costs = following
        ratio = (rows / size @ costs).clip(1 / MAX_RATIO, MAX_RATIO)
        off = np.abs(np.log(ratio))
        # with these weights, a linear difference has the gradient of the squared logarithm
        pull = np.divide(np.log(ratio), ratio - 1, out=np.ones_like(ratio), where=ratio != 1)
        weights = np.sqrt(pull / ratio)
        if robust:
            usual = 1.345 * max(float(np.median(off)) / 0.6745, 1e-12)  # 95 % efficiency for normal errors
            weights *= np.sqrt(usual / np.maximum(off, usual))
    return np.asarray(costs / size, np.float64)


def summary(errors: Vector, margins: Vector | None = None) -> dict[str, Any]:
    """Return median and worst absolute value of the finite errors; None without any.

    With ``margins`` also the share of measured times within their intervals; see :meth:`Fit.left_out`.
    """
    finite = np.isfinite(errors)
    sizes = np.abs(errors[finite])
    if not len(sizes):
        return {"median": None, "worst": None, "covered": None, "of": 0}
    with np.errstate(divide="ignore"):  # a predicted time of 0 is within no interval
        covered = None if margins is None else float((np.abs(np.log1p(errors[finite])) <= margins[finite]).mean())
    return {"median": float(np.median(sizes)), "worst": float(sizes.max()), "covered": covered, "of": len(sizes)}
