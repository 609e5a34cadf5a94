"""Microbatches, sections of consecutive layers that work on them, and the schedules of their passes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from hpcdl.fabric.comm import Array
from hpcdl.nn.replica import Stage
from hpcdl.nn.split.part import Range
from hpcdl.training.parts.split.flow import Flow


class Pass(NamedTuple):
    """Forward or backward pass of one microbatch."""

    forward: bool
    microbatch: int


def gpipe(_stage: int, _stages: int, microbatches: int) -> list[Pass]:
    """Return GPipe's order (Huang et al. 2019, figure 2c): all forwards, then all backwards in reverse.

    All microbatches are in flight.
    """
    return [Pass(True, m) for m in range(microbatches)] + [Pass(False, m) for m in reversed(range(microbatches))]


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[Pass]:
    """Return 1F1B's order with a flush per step (PipeDream-Flush; Narayanan et al. 2021, section 2.2).

    After a warm-up, each forward is followed by a backward. At most ``stages - stage`` microbatches are in flight.
    """
    ahead = min(stages - stage, microbatches)
    order = [Pass(True, m) for m in range(ahead)]
    for m in range(microbatches):
        order.append(Pass(False, m))
        if m + ahead < microbatches:
            order.append(Pass(True, m + ahead))
    return order


SCHEDULES: Final[Mapping[str, Callable[[int, int, int], list[Pass]]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
}
"""Functions of stage, stages and microbatches, by name."""


def in_flight(order: Sequence[Pass]) -> int:
    """Return the most microbatches that are between their forward and their backward."""
    most = now = 0
    for step in order:
        now += 1 if step.forward else -1
        most = max(most, now)
    return most


def bubble_share(stages: int, microbatches: int, balance: float = 1.0) -> float:
    """Return the idle share of a step without messages, mean over stages: GPipe's, and at most that of 1F1B.

    ``balance``: mean time of the stages by that of the slowest, b. The slowest stage works on M microbatches, and
    each other stage delays the first of them: a step takes M - 1 + S b of its times, of which a stage works M b.
    Equal stages, b = 1, with either schedule: (S - 1) / (M + S - 1) (Huang et al. 2019, section 2.3).
    """
    return 1 - microbatches * balance / (microbatches - 1 + stages * balance)


class Microbatch(NamedTuple):
    """Images that pass through the layers together."""

    labels: Array
    shares: Sequence[Range]
    """Shares of the model group's ranks in the images."""


class Section(NamedTuple):
    """Consecutive layers that work on the same microbatches, in the order of a schedule."""

    begin: int
    """Number of the first layer among those of the replica."""
    bindings: Sequence[Sequence[Stage]]
    """The layers, bound once for each microbatch in flight; microbatches take them in turn."""
    flows: Sequence[Flow]
    """Flows of activations, which microbatches take in turn."""
    order: Sequence[Pass]
    microbatches: Sequence[Microbatch] = ()
