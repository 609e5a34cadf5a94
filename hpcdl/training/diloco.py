from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Final

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Task
from hpcdl.optim.parts.protocol import Optimizer
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
    ``parameter_averaging``. The paper has 500 steps in a period. ``weight_i`` is rank i's share of a batch.

    Streaming DiLoCo (Douillard et al. 2025, algorithm 2) exchanges one of several ``fragments`` at a time, so that
    fewer bytes are sent at once: fragment k of P after k H / P steps of each period. Fragments are equal parts of
    the parameters, cut between tensors if the compressor must. With a ``delay`` (tau) ranks make that many steps
    while delta is summed. Theta and x_i then are of different steps, and x_i becomes their mean.

    The session's compression sends delta, and adds what it has not sent to the next delta of the fragment. A sum
    starts when the previous one has ended, so that a library's sums start in one order on all ranks. Evaluations
    test the average over ranks. A delta that is under way at the end is not applied.

    Messages: one allreduce of V bytes (the parameters) in ``period`` steps, V / P at a time. Memory: three
    vectors, ``theta``, ``delta`` and the velocity of OuterOpt, which SGD with momentum 0 lacks.
    """
    replica, place = session.replica, (comm.rank, comm.size)
    # without an aggregation (the no-communication ceiling) each rank follows its own changes
    weight = 1.0 if session.independent else session.inputs.images_of(*place) / session.global_batch
    parts = cut(session, fragments, partial(OUTER[outer_optimizer], momentum=outer_momentum))
    under_way = deque[tuple[int, Fragment, Task[None]]]()

    async def exchange(fragment: Fragment, previous: Task[None] | None) -> None:
        if previous is not None:
            await previous
        await session.reduce(comm, fragment.span, fragment.delta)

    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.inputs.epoch(step), rate) as outcome:
            await gradient(comm, session, partial(session.inputs.load, step, *place), outcome)
            update = partial(session.optimizer.update, replica.parameters, replica.gradients, rate)
            await comm.compute("update", update)
            for number, fragment in enumerate(parts, 1):
                if (step + 1 - number * period // len(parts)) % period == 0:
                    await comm.apply("change", partial(fragment.subtract, weight), 3 * fragment.x.nbytes)
                    previous = under_way[-1][2] if under_way else None
                    under_way.append((step + delay, fragment, comm.start(exchange(fragment, previous))))
            while under_way and under_way[0][0] == step:
                _, fragment, exchanged = under_way.popleft()
                await exchanged
                outer = partial(fragment.update, outer_rate, KEPT if delay else 0.0)
                await comm.apply("outer update", outer, 5 * fragment.x.nbytes)
        if session.evaluation.due(step + 1):
            for _, _, exchanged in under_way:
                await exchanged
            if await session.evaluation.test_average(
                comm, step + 1, replica.parameters, weight=weight * comm.size
            ):
                return


@dataclass(frozen=True)
class Fragment:
    """Part of the parameters: a rank's own, theta, which is equal on all ranks, their change, and OuterOpt."""

    span: slice
    x: Array
    theta: Array
    delta: Array
    optimizer: Optimizer

    def subtract(self, weight: float) -> None:
        """Set the change to that since the last outer step, times ``weight``."""
        change = self.delta
        change[:] = self.theta
        change -= self.x
        change *= weight

    def update(self, rate: float, kept: float) -> None:
        """Make the outer step; ``x`` keeps a share of itself, and the rest becomes theta."""
        self.optimizer.update(self.theta, self.delta, rate)
        x, scratch = self.x, self.delta
        scratch[:] = self.theta
        scratch *= 1 - kept
        x *= kept
        x += scratch


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
    period, rate, momentum = (settings[name] for name in ("period", "outer_rate", "outer_momentum"))
    if rate <= 0:
        raise ValueError(f"outer_rate: must be more than 0, not {rate}")
    if not 0 <= momentum < 1:
        raise ValueError(f"outer_momentum: must be at least 0 and less than 1, not {momentum}")
    for name, most in (("fragments", period), ("delay", period - 1)):
        if settings[name] > most:
            raise ValueError(f"{name}: must be at most {most}, with period {period}, not {settings[name]}")


def check_compression(plan: Plan, _settings: Settings) -> None:
    """Raise ValueError for a compressor of gradients alone."""
    if not plan.traits.scaled or plan.traits.own_momentum:
        reason = "has a momentum of its own" if plan.traits.scaled else "sends signs without a size"
        raise ValueError(f"{plan.name} {reason}, and 'diloco' sends changes of parameters")


TRAITS: Final = Strategy(
    weighs_images=True,
    compresses=True,
    periodic=True,
    symmetric=lambda _settings: True,
    least={"period": 1, "fragments": 1, "delay": 0},
    words={"outer_optimizer": tuple(OUTER)},
    check=check,
    check_compression=check_compression,
    title=lambda _ranks, settings: "Streaming DiLoCo" if settings["fragments"] > 1 else "DiLoCo",
    cycle=lambda settings: int(settings["period"]),
)
