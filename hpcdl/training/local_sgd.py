"""Local SGD: averages of parameters, and DiLoCo's outer steps."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import imul
from typing import Final

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Task, join
from hpcdl.fabric.vectors import assign
from hpcdl.optim.parts.protocol import Optimizer, fraction, positive
from hpcdl.optim.sgd import OFFERS as OUTER
from hpcdl.training.parts.compressed import shards
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.mesh import holders, place_among
from hpcdl.training.parts.plan import Plan
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings, Strategy

KEPT: Final = 0.5
"""Share of a rank's own parameters that an outer step with a delay keeps (alpha of Streaming DiLoCo)."""


async def parameter_averaging(
    comm: Comm,
    session: Session,
    *,
    period: int = 1,
    optimizer_state: str = "kept",
    local_from: int = 0,
    post_local: bool = False,
) -> None:
    """Local SGD: average the parameters of all ranks every ``period`` steps (Su & Chen 2015; Lin et al. 2020).

        x_i  <-  x_i - rate * gradient(x_i)                     every step
        x_i  <-  sum over j of weight_j * x_j                   every ``period`` steps, and after the last step

    ``weight_j`` is rank j's share of a batch; shares may be unequal. An evaluation between two averages tests such
    an average. A rank's gradient is the mean over its own share. With ``period`` 1, constant shares and an
    optimizer that is linear in the gradient each step is one of synchronous training.

    ``optimizer_state``: each rank keeps its own (``"kept"``), it is averaged with the same weights
    (``"averaged"``), or set to zero at each average (``"reset"``), with the count of updates.

    Before step ``local_from`` the period is 1; with ``post_local`` also before the first step at which the
    learning rate falls: post-local SGD (Lin et al. 2020, arXiv 1808.07217).

    On a mesh the ranks with the same parts of the layers average them; a replica's gradient is that of its group.

    Messages: one allreduce of V bytes (the parameters) per average, one more per averaged state vector. Memory: no
    further vector.
    """
    among, place = holders(comm, session.group), place_among(comm, session.group)
    share, parameters = session.inputs.images_of(*place), session.replica.parameters
    # without an aggregation (the no-communication baseline) each rank averages with itself only
    weight = 1.0 if session.independent else share / session.global_batch
    begin = max(local_from, _first_drop(session.learning_rate, session.steps) if post_local else 0)
    since = 0
    for step in range(session.steps):
        with session.step(step) as (outcome, rate):
            inputs = partial(session.inputs.load, step, *place)
            await gradient(comm, session, inputs, outcome, scale=1 / max(1, share))
            if session.group is not None:
                await session.group.complete(session.aggregate)
            await session.update(comm, rate)
            since += 1
            if since >= period or step < begin or step + 1 == session.steps:
                await _average(among, session, parameters, weight)
                await _change_state(comm, among, session, weight, optimizer_state)
                since = 0
        if session.evaluation.due(step + 1):
            if not since or session.independent:
                stop = await session.evaluation.test(comm, step + 1)
            else:
                times = among.size * share / session.global_batch
                stop = await session.evaluation.test_average(comm, step + 1, parameters, weight=times)
                if stop:
                    await _average(among, session, parameters, weight)
            if stop:
                return


async def _average(comm: Comm, session: Session, vector: Array, weight: float) -> None:
    """Replace a vector by the sum of the ranks' vectors times their weights."""
    await comm.apply("weigh", partial(imul, vector, weight), vector.nbytes)
    await session.aggregate(comm, vector)


async def _change_state(comm: Comm, among: Comm, session: Session, weight: float, change: str) -> None:
    """Keep, average or reset the optimizer's state."""
    for vector in session.optimizer.state.values() if change != "kept" else ():
        if change == "averaged":
            await _average(among, session, vector, weight)
        else:
            await comm.apply("reset", partial(assign, vector, 0), vector.nbytes)
    if change == "reset":
        session.optimizer.steps = 0


def check_local_steps(rate: Callable[[int], float], steps: int, settings: Settings) -> None:
    """Raise ValueError if no step would be local, or if with ``post_local`` all steps would be."""
    if settings["period"] == 1:
        return
    if settings["local_from"] >= steps:
        raise ValueError(
            f"local_from: {settings['local_from']}, but training has {steps} steps: none would be local"
        )
    if settings["post_local"]:
        first = _first_drop(rate, steps)
        if first in {1, steps}:
            when = "never" if first == steps else "always"
            raise ValueError(f"post_local: the learning rate {when} falls; give local_from, the first local step")


def cycle_of_averages(settings: Settings) -> int:
    """Return the period. Raises ValueError if it changes, or if the size of messages is unknown."""
    if settings["optimizer_state"] == "averaged":
        raise ValueError("the size of the averaged optimizer state is unknown")
    if settings["local_from"] or settings["post_local"]:
        raise ValueError("its period changes during training")
    return int(settings["period"])


def _first_drop(rate: Callable[[int], float], steps: int) -> int:
    """Return the first step whose rate is below that of the previous step; ``steps`` if there is none."""
    return next((step for step in range(1, steps) if rate(step) < rate(step - 1)), steps)


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


def check_outer(_ranks: int, settings: Settings) -> None:
    """Raise ValueError for an outer rate or momentum out of range, and for what a period does not hold."""
    positive("outer_rate", settings["outer_rate"])
    fraction("outer_momentum", settings["outer_momentum"])
    for name, most in (("fragments", settings["period"]), ("delay", settings["period"] - 1)):
        if settings[name] > most:
            raise ValueError(f"{name}: must be at most {most}, by the period, not {settings[name]}")


def check_outer_step(_rate: Callable[[int], float], steps: int, settings: Settings) -> None:
    """Raise ValueError for a training without an outer step."""
    if (first := settings["period"] + settings["delay"]) > steps:
        raise ValueError(f"period: the first outer step is after {first} steps, but training has {steps}")


def check_compression(plan: Plan, _settings: Settings) -> None:
    """Raise ValueError for a compressor of gradients alone."""
    if not plan.traits.scaled or plan.traits.own_momentum:
        raise ValueError(f"'diloco' cannot use {plan.name}, which sends signs alone or has a momentum")


def title(_ranks: int, settings: Settings) -> str:
    """Return the literature's name: one fragment and an outer step to the average are local SGD."""
    average = (settings["outer_optimizer"], settings["outer_rate"], settings["outer_momentum"]) == ("sgd", 1, 0)
    return "local SGD" if average else "Streaming DiLoCo" if settings["fragments"] > 1 else "DiLoCo"


OFFERS: Final = {"parameter_averaging": parameter_averaging, "diloco": diloco}
TRAITS: Final = {
    "parameter_averaging": Strategy(
        weighs_images=True,
        splits_layers=True,
        least={"period": 1, "local_from": 0},
        words={"optimizer_state": ("kept", "averaged", "reset")},
        check_rates=check_local_steps,
        cycle=cycle_of_averages,
    ),
    "diloco": Strategy(
        weighs_images=True,
        compresses=True,
        periodic=True,
        least={"period": 1, "fragments": 1, "delay": 0},
        words={"outer_optimizer": tuple(OUTER)},
        check=check_outer,
        check_compression=check_compression,
        check_rates=check_outer_step,
        title=title,
        cycle=lambda settings: int(settings["period"]),
    ),
}
