"""Costs stated in a scheme's docstring, as formulas that can be evaluated.

A line such as ``Bytes, busiest rank: 2*n*(p - 1)/p`` or ``Time, p a power of two: log2(p)*alpha`` is an
expression in p (ranks), n (bytes of the vector), alpha (s), beta (s/byte), gamma (s/byte reduced) and the
scheme's settings. A line such as ``N = ceil(p/2)`` names a term. After ``Time,`` comes the condition of the
formula: words of :data:`_HOLDS`, or an expression such as ``p > 1``.
"""

import inspect
import re
from collections.abc import Mapping
from math import ceil, floor, log2
from typing import Final

from hpcdl import registry
from hpcdl.registry import Offer, Settings

_LINE: Final = re.compile(r"^(Messages|Bytes|Time)(?:, ([^:]+))?: (.+)$", re.MULTILINE)
_NAME: Final = re.compile(r"^([A-Za-z]\w*) = (.+)$", re.MULTILINE)

_HOLDS: Final = {
    "": "True",
    "p a power of two": "p & (p - 1) == 0",
    "p not a power of two": "p & (p - 1) != 0",
    "p + 1 a power of two": "(p + 1) & p == 0",
}

_FUNCTIONS: Final = {f.__name__: f for f in (ceil, floor, log2, max, min, range, sum)}


def costs(aggregation: Offer, settings: Settings | None = None) -> dict[str, str]:
    """Return the stated costs, such as ``{"Messages, busiest rank": "2*(p - 1)"}``; empty if there are none.

    Settings are replaced by their values, or by their defaults.
    """
    text = inspect.getdoc(aggregation) or ""
    defaults = {name: parameter.default for name, parameter in registry.settings_of(aggregation).items()}
    known = {name: repr(value) for name, value in {**defaults, **(settings or {})}.items() if value is not None}
    for name, meaning in _NAME.findall(text):
        known.setdefault(name, f"({_filled(meaning, known)})")
    return {
        _filled(f"{quantity}, {which}" if which else quantity, known): _filled(formula, known)
        for quantity, which, formula in _LINE.findall(text)
    }


def _filled(formula: str, known: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda name: known.get(name[0], name[0]), formula)


def cost(formula: str, ranks: int, size: float, alpha: float = 0, beta: float = 0, gamma: float = 0) -> float:
    """Return the value of a formula for ``ranks`` ranks and a vector of ``size`` bytes."""
    return float(evaluate(formula, {"p": ranks, "n": size, "alpha": alpha, "beta": beta, "gamma": gamma}))


def evaluate(formula: str, numbers: Mapping[str, object]) -> float:
    """Return the value of an expression from a docstring, with the functions of :data:`_FUNCTIONS`."""
    value: float = eval(formula, {"__builtins__": _FUNCTIONS, **numbers})  # noqa: S307
    return value


def time(
    aggregation: Offer,
    ranks: int,
    size: float,
    alpha: float,
    beta: float,
    gamma: float,
    settings: Settings | None = None,
) -> float | None:
    """Return the stated time in s; None if no formula covers this number of ranks or one of the settings."""
    stated = inspect.getdoc(aggregation) or ""
    formulas = " ".join(part for line in (*_LINE.findall(stated), *_NAME.findall(stated)) for part in line)
    if not set(settings or ()) <= set(re.findall(r"\w+", formulas)):
        return None
    for quantity, formula in costs(aggregation, settings).items():
        name, _, condition = quantity.partition(", ")
        if name == "Time" and evaluate(_HOLDS.get(condition, condition), {"p": ranks, "n": size}):
            return cost(formula, ranks, size, alpha, beta, gamma)
    return None


def volume(
    quantity: str, aggregation: Offer, ranks: int, size: float, settings: Settings | None = None
) -> float | None:
    """Return the stated "Messages" or "Bytes" of all ranks, or an upper bound; None if none is stated."""
    stated = costs(aggregation, settings)
    for which, factor in (("all ranks", 1), ("busiest rank", ranks)):
        if (formula := stated.get(f"{quantity}, {which}")) is not None:
            return factor * cost(formula, ranks, size)
    return None


MAX_MESSAGES: Final = 10**9
"""Most messages of a simulated operation; they take about an hour."""


def check_messages(
    aggregation: Offer, ranks: int, size: float, settings: Settings | None = None, most: int = MAX_MESSAGES
) -> None:
    """Raise ValueError for an operation with more than ``most`` messages."""
    stated = volume("Messages", aggregation, ranks, size, settings)
    sent = 2 * ranks * (ranks - 1) if stated is None else stated  # default: a ring's
    if sent > most:
        what = "simulated" if most == MAX_MESSAGES else "traced"
        raise ValueError(f"{ranks} ranks may send {sent:.2g} messages; at most {most:.0e} are {what}")
