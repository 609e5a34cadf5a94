"""The network that explains measured times best: alpha, beta and gamma fitted through the simulation itself.

A simulated time is the longest chain of messages and reductions, so that it is piecewise linear in the prices:
near any network it is ``coefficients @ prices``. The coefficients are the time's derivatives, which one simulation
carries along; the prices come from a linear fit to the measured times; both in turn until nothing changes (Gauss
and Newton's method, whose linear pieces are exact here). An error is the logarithm of predicted by measured time,
so that twice and half the time are equally wrong; no price is negative (Lawson & Hanson, Solving Least Squares
Problems, 1974, chapter 23), and errors far beyond the usual count less (Huber 1964).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.cells import cheapest
from hpcdl.analysis.dual import Dual
from hpcdl.fabric.network import EVERY_RANK, Link, Network
from hpcdl.fabric.simulated import simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from hpcdl.analysis.cells import Cell

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

PRICES: Final = ("alpha", "beta", "gamma", "inside alpha", "inside beta")
"""Seconds a message, a byte, a byte reduced; then a message and a byte between ranks of one host."""

BEGIN: Final = np.array([1e-5, 1e-9, 1e-10, 1e-6, 1e-10])
"""Where the fit begins; any order of magnitude will do."""

FREE: Final = 1e-4 * BEGIN
"""Simulated instead of less, so that of chains that take equally long the one that pays most is seen."""

ENOUGH: Final = 10_000
"""Messages that each step of the search may simulate; cells that are beyond it count at its end only."""

FAR_OFF: Final = 100
"""Times too much or too little beyond which nothing pulls harder."""

MANY: Final = 4
"""Cells for each price, at least, among those by which prices are sought."""

PATIENCE: Final = 5
"""Steps in a row that bring less than 1 % before the fit is good enough."""

DISTINCT: Final = 1e-3
"""Directions of prices that weigh less than this share of the heaviest: no measurement is so exact."""

HUBER: Final = 1.345
"""Standard deviations beyond which an error counts less: 95 % as precise as least squares on normal errors."""


class CannotFitError(Exception):
    """Too little was measured. One line."""


@dataclass(frozen=True)
class Fit:
    """Prices that explain some cells."""

    cells: Sequence[Cell]
    prices: Vector
    """In the order of :data:`PRICES`; 0 for those that no cell pays."""
    coefficients: Matrix
    """(cells, prices): what each cell's time is made of."""
    layout: Network
    """Where the ranks are; its prices are not used."""

    @property
    def measured(self) -> Vector:
        """(cells,): measured seconds."""
        return np.array([cell.seconds for cell in self.cells])

    @property
    def network(self) -> Network:
        """The network of these prices."""
        return _priced(self.layout, self.prices.tolist())

    @property
    def pays(self) -> list[str]:
        """The prices that some cell pays."""
        return [PRICES[price] for price in np.flatnonzero(self.coefficients.sum(axis=0))]

    @property
    def undetermined(self) -> list[str]:
        """Prices that these cells cannot tell from one another: only what they come to together is known."""
        rows = self.coefficients / self.measured[:, None]
        paid = np.flatnonzero(rows.any(axis=0))
        columns = rows[:, paid] / np.linalg.norm(rows[:, paid], axis=0)
        _, values, directions = np.linalg.svd(columns)
        values = np.concatenate([values, np.zeros(len(paid) - len(values))])
        free = np.abs(directions[values < DISTINCT * values[0]])
        return [PRICES[price] for price, in_it in zip(paid, (free > DISTINCT).any(axis=0), strict=True) if in_it]

    @property
    def predicted(self) -> Vector:
        """(cells,): seconds on the fitted network."""
        return self.coefficients @ self.prices

    @property
    def errors(self) -> Vector:
        """(cells,): the fitted time's error as a share of the measured one."""
        return self.predicted / self.measured - 1

    def left_out(self, group_of: Callable[[Cell], Hashable]) -> Vector:
        """(cells,): the same, each cell predicted by the prices that all groups but its own come to.

        NaN where the others say nothing about a price that the cell pays.
        """
        errors = np.full(len(self.cells), np.nan)
        groups = [group_of(cell) for cell in self.cells]
        measured = self.measured
        for group in dict.fromkeys(groups):
            mine = np.array([one == group for one in groups])
            unpaid = self.coefficients[~mine].sum(axis=0) == 0
            known = self.coefficients[:, unpaid].sum(axis=1) == 0
            if (~mine).sum() >= (~unpaid).sum() and known[mine].any():
                prices = _solve(self.coefficients[~mine], measured[~mine])
                network = _priced(self.layout, prices.tolist())
                for place in map(int, np.flatnonzero(mine & known)):
                    errors[place] = seconds(self.cells[place], network) / measured[place] - 1
        return errors


def fit(cells: Sequence[Cell], hosts: Sequence[int] = ()) -> Fit:
    """Fit a network to ``cells``, whose ranks are on ``hosts``, all on one unless given.

    Raises CannotFitError where there are fewer cells than prices to find.
    """
    layout = _layout(hosts)
    begin = _at(cells, layout, BEGIN)
    if len(cells) < (wanted := max(len(begin.pays), 1)):
        raise CannotFitError(f"{len(cells)} measured collectives and exchanges cannot tell {wanted} prices")
    light = _at(cheapest(cells, ENOUGH), layout, BEGIN)
    if len(light.cells) < MANY * wanted or light.pays != begin.pays:
        light = begin
    squares = _descend(light, robust=False)  # robust at once, most cells may pass for odd ones
    return _at(cells, layout, _descend(squares, robust=True).prices)


def _descend(best: Fit, *, robust: bool) -> Fit:
    """From ``best`` on, halving each step that would make the errors grow: it leads to another piece."""
    patience, off = PATIENCE, _size(best.errors, robust=robust)
    aim = _solve(best.coefficients, best.measured, robust=robust)
    while patience and not np.allclose(aim, best.prices, rtol=1e-7, atol=0):
        tried = _at(best.cells, best.layout, aim)
        if (size := _size(tried.errors, robust=robust)) < off:
            patience = PATIENCE if size < 0.99 * off else patience - 1
            best, off = tried, size
            aim = _solve(best.coefficients, best.measured, robust=robust)
        else:
            patience -= 1
            aim = (aim + best.prices) / 2
    return best


def _size(errors: Vector, *, robust: bool) -> float:
    logarithms = np.log((1 + errors).clip(1 / FAR_OFF, FAR_OFF))
    return float(np.mean(np.abs(logarithms) if robust else logarithms**2))


def _at(cells: Sequence[Cell], layout: Network, prices: Vector) -> Fit:
    """What the times are made of near ``prices``."""
    each = zip(prices.clip(FREE).tolist(), np.eye(len(PRICES)).tolist(), strict=True)
    network = _priced(layout, [Dual(price, tuple(row)) for price, row in each])
    coefficients = [_slope(seconds(cell, network)) for cell in cells]
    return Fit(cells, prices, np.array(coefficients).reshape(-1, len(PRICES)), layout)


def _slope(time: float) -> tuple[float, ...]:
    return time.slope if isinstance(time, Dual) else (0.0,) * len(PRICES)


def seconds(cell: Cell, network: Network) -> float:
    """What a cell's program takes on ``network``."""
    world = simulated(cell.ranks, network)
    world.run(cell.program)
    return world.now


def _layout(hosts: Sequence[int]) -> Network:
    several = len(set(hosts)) > 1
    ranks_per_host = max(map(list(hosts).count, hosts)) if several else EVERY_RANK
    placed = tuple(hosts) if several else ()
    return Network("fitted", Link(0.0, 0.0), source="", ranks_per_host=ranks_per_host, hosts=placed)


def _priced(layout: Network, prices: Sequence[float]) -> Network:
    alpha, beta, gamma, *inside = prices
    link = Link(*inside) if layout.is_one_host else Link(alpha, beta)
    return replace(layout, link=link, gamma=gamma, inside=Link(*inside))


def _solve(coefficients: Matrix, measured: Vector, *, robust: bool = True) -> Vector:
    """Prices, none negative, by which predicted and measured times differ least, in their ratio's logarithm.

    Robust or squared; 0 for a price that nobody pays.
    """
    rows = coefficients / measured[:, None]
    size = np.linalg.norm(rows, axis=0)
    size[size == 0] = 1
    weights = np.ones(len(rows))
    prices = np.zeros(len(size))
    for _ in range(100):
        following = _non_negative(rows / size * weights[:, None], weights)
        if np.allclose(following, prices, rtol=1e-9, atol=0):
            break
        prices = following
        ratio = (rows / size @ prices).clip(1 / FAR_OFF, FAR_OFF)
        off = np.abs(np.log(ratio))
        # weighted so, a difference pulls at the prices as the square of the logarithm does
        pull = np.divide(np.log(ratio), ratio - 1, out=np.ones_like(ratio), where=ratio != 1)
        weights = np.sqrt(pull / ratio)
        if robust:
            usual = HUBER * max(float(np.median(off)) / 0.6745, 1e-12)
            weights *= np.sqrt(usual / np.maximum(off, usual))
    return np.asarray(prices / size, np.float64)


def _non_negative(rows: Matrix, wanted: Vector) -> Vector:
    """The x >= 0 of least ``|rows @ x - wanted|`` (Lawson & Hanson's algorithm NNLS)."""
    x = np.zeros(rows.shape[1])
    active = np.zeros(len(x), bool)
    slack = 1e-12 * np.linalg.norm(wanted)
    for _ in range(10 * len(x)):
        downhill = rows.T @ (wanted - rows @ x)
        if active.all() or downhill[~active].max() <= slack:
            break
        active[np.argmax(np.where(active, -np.inf, downhill))] = True
        while True:
            there = np.zeros(len(x))
            there[active] = np.linalg.lstsq(rows[:, active], wanted, rcond=1e-9)[0]
            if there[active].min(initial=np.inf) > 0:
                x = there
                break
            out = active & (there <= 0)
            share = (x[out] / (x[out] - there[out])).min()
            x = x + share * (there - x)
            active &= x > 1e-15
            x[~active] = 0
            if not active.any():
                break
    return x


def summary(errors: Vector) -> dict[str, Any]:
    """Median and worst of the errors that there are, without their signs; None where there are none."""
    known = np.abs(errors[np.isfinite(errors)])
    if not len(known):
        return {"median": None, "worst": None, "of": 0}
    return {"median": float(np.median(known)), "worst": float(known.max()), "of": len(known)}
