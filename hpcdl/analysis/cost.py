"""The cost that an aggregation's docstring states, as formulas that can be evaluated.

A line such as ``Bytes, busiest rank: 2*n*(p - 1)/p`` or ``Time, p a power of two: log2(p)*alpha`` is an
expression in p (ranks), n (bytes of the vector), alpha (s), beta (s/byte) and gamma (s/byte reduced).
"""

from __future__ import annotations

import inspect
import re
from math import ceil, floor, log2
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_LINE: Final = re.compile(r"^(Messages|Bytes|Time)(?:, ([^:]+))?: (.+)$", re.MULTILINE)

_HOLDS: Final[dict[str, Callable[[int], bool]]] = {
    "": lambda _: True,
    "p a power of two": lambda p: p & (p - 1) == 0,
    "p not a power of two": lambda p: p & (p - 1) != 0,
    "p + 1 a power of two": lambda p: (p + 1) & p == 0,
}


def costs(aggregation: Callable[..., Any]) -> dict[str, str]:
    """``{"Messages, busiest rank": "2*(p - 1)", ...}``, empty if the docstring states none."""
    lines = _LINE.findall(inspect.getdoc(aggregation) or "")
    return {f"{what}, {which}" if which else what: formula for what, which, formula in lines}


def cost(formula: str, ranks: int, size: float, alpha: float = 0, beta: float = 0, gamma: float = 0) -> float:
    """The value of a formula for ``ranks`` ranks and a vector of ``size`` bytes."""
    numbers = {"p": ranks, "n": size, "alpha": alpha, "beta": beta, "gamma": gamma}
    functions = {"__builtins__": {}, "ceil": ceil, "floor": floor, "log2": log2}
    return float(eval(formula, functions, numbers))  # noqa: S307 - from a docstring that a suite named


def time(
    aggregation: Callable[..., Any], ranks: int, size: float, alpha: float, beta: float, gamma: float
) -> float | None:
    """The stated time in seconds, None where no formula covers this number of ranks."""
    for what, formula in costs(aggregation).items():
        name, _, condition = what.partition(", ")
        if name == "Time" and _HOLDS[condition](ranks):
            return cost(formula, ranks, size, alpha, beta, gamma)
    return None
