from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Task, join
from hpcdl.optim.parts.protocol import Optimizer, fraction, positive
from hpcdl.optim.sgd import OFFERS as OUTER
from hpcdl.training.parts.compressed.exchanges import shards
from hpcdl.training.parts.compressed.plan import Plan
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings, Strategy

KEPT: Final = 0.5
"""Share of a rank's own parameters that an outer step with a delay keeps (alpha of Streaming DiLoCo)."""


async def diloco(
    comm: Comm,
    session: Session,
    *,
    period: int = 16,
    outer_optimizer: str = "nesterov",
    outer_rate: float = 0.7,
    outer_momentum: float = 0.9,
    fragments: int = 1,
    delay: int = 0,
) -> None:
    """DiLoCo: local steps, then an outer step along the mean change (Douillard et al. 2023, algorithm 1).

        x_i    <-  InnerOpt(x_i, gradient(x_i))                  every step
        delta  <-  sum over i of weight_i * (theta - x_i)        every ``period`` (H) steps
        theta  <-  OuterOpt(theta, delta),   x_i  <-  theta

    InnerOpt is the case's optimizer, AdamW in the paper, whose state each rank keeps. OuterOpt is SGD or
    Nesterov's rule with ``outer_rate`` and ``outer_momentum``. With SGD, rate 1 and momentum 0 it is
    ``parameter_averaging``. ``weight_i`` is rank i's share of a batch.

    Streaming DiLoCo (Douillard et al. 2025, algorithm 2) exchanges one of several ``fragments`` at a time:
    fragment k of P after k H / P steps of each period. Fragments are equal parts of the parameters, cut between
    tensors if the compressor must. With a ``delay`` (tau) ranks make that many steps while delta is summed. Theta
    and x_i then are of different steps, and x_i becomes their mean.

    The session's compression sends delta, and adds what it has not sent to the next delta of the fragment. Sums
    follow each other, so that a library's start in one order on all ranks. Evaluations test theta; steps after the
    last outer step are lost.

    Messages: one allreduce of V bytes (the parameters) in ``period`` steps, V / P at a time. Memory: three
    vectors, ``theta``, ``delta`` and the velocity of OuterOpt, which SGD with momentum 0 lacks.
    """
    # without an aggregation (the no-communication baseline) each rank follows its own changes
    weight = 1.0 if session.independent else session.inputs.images_of(comm.rank, comm.size) / session.global_batch
    parts = cut(session, fragments, partial(OUTER[outer_optimizer], momentum=outer_momentum))
    under_way = deque[tuple[int, Fragment, Task[None]]]()

    async def exchange(fragment: Fragment, earlier: list[Task[None]]) -> None:
        await join(earlier)
        await session.reduce(comm, fragment.span, fragment.delta)

    for step in range(session.steps):
        with session.step(step) as (outcome, rate):
            await gradient(comm, session, partial(session.inputs.load, step, comm.rank, comm.size), outcome)
            await session.update(comm, rate)
            for number, fragment in enumerate(parts, 1):
                if (step + 1 - number * period // len(parts)) % period == 0:
                    await comm.apply("change", partial(fragment.subtract, weight), 3 * fragment.x.nbytes)
                    task = comm.start(exchange(fragment, [task for _, _, task in under_way]))
                    under_way.append((step + delay, fragment, task))
            while under_way and under_way[0][0] == step:
                _, fragment, task = under_way.popleft()
                await task
                outer = partial(fragment.update, outer_rate, KEPT if delay else 0.0)
                await comm.apply("outer update", outer, 5 * fragment.x.nbytes)
        if session.evaluation.due(step + 1):
            await join(task for _, _, task in under_way)
            if await session.evaluation.test(comm, step + 1, parameters=session.vectors["theta"]):
                return


@dataclass
class Fragment:
    """Part of the parameters: a rank's own, theta, which is equal on all ranks, their change, and OuterOpt."""

    span: slice
    x: Array
    theta: Array
    delta: Array
    optimizer: Optimizer

    def subtract(self, weight: float) -> None:
        """Set the change to that since the last outer step, times ``weight``."""
        self.delta[:] = self.theta
        self.delta -= self.x
        self.delta *= weight

    def update(self, rate: float, kept: float) -> None:
        """Make the outer step; ``x`` keeps a share of itself, and the rest becomes theta."""
        self.optimizer.update(self.theta, self.delta, rate)
        self.delta[:] = self.theta
        self.delta *= 1 - kept
        self.x *= kept
        self.x += self.delta


def cut(session: Session, fragments: int, make: partial[Optimizer]) -> list[Fragment]:
    """Return equal parts of the parameters; between tensors if the compressor must, and then perhaps fewer."""
    replica, plan = session.replica, session.compression
    x, theta, delta = replica.parameters, session.vector("theta"), session.vector("delta")
    theta[:] = x
    whole = replica.tensors if plan is not None and plan.traits.whole_tensors else None
    return [
        Fragment(span, x[span], theta[span], delta[span], session.second_optimizer(make()))
        for span in shards(slice(0, x.size), fragments, whole)
        if span.start < span.stop
    ]


def check(_ranks: int, settings: Settings) -> None:
    """Raise ValueError for an outer rate or momentum out of range, and for what a period does not hold."""
    positive("outer_rate", settings["outer_rate"])
    fraction("outer_momentum", settings["outer_momentum"])
    for name, most in (("fragments", settings["period"]), ("delay", settings["period"] - 1)):
        if settings[name] > most:
            raise ValueError(f"{name}: must be at most {most}, by the period, not {settings[name]}")


def check_rates(_rate: Callable[[int], float], steps: int, settings: Settings) -> None:
    """Raise ValueError for a training without an outer step."""
    if (first := settings["period"] + settings["delay"]) > steps:
        raise ValueError(f"period: the first outer step is after {first} steps, but training has {steps}")


def check_compression(plan: Plan, _settings: Settings) -> None:
    """Raise ValueError for a compressor of gradients alone."""
    if not plan.traits.scaled or plan.traits.own_momentum:
        raise ValueError(f"{plan.name} sends signs alone or has a momentum; 'diloco' sends changes of parameters")


def title(_ranks: int, settings: Settings) -> str:
    """Return the literature's name: one fragment and an outer step to the average are local SGD."""
    average = (settings["outer_optimizer"], settings["outer_rate"], settings["outer_momentum"]) == ("sgd", 1, 0)
    return "local SGD" if average else "Streaming DiLoCo" if settings["fragments"] > 1 else "DiLoCo"


TRAITS: Final = Strategy(
    weighs_images=True,
    compresses=True,
    periodic=True,
    least={"period": 1, "fragments": 1, "delay": 0},
    words={"outer_optimizer": tuple(OUTER)},
    check=check,
    check_compression=check_compression,
    check_rates=check_rates,
    title=title,
    cycle=lambda settings: int(settings["period"]),
)
