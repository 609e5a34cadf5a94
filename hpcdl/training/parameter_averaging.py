from collections.abc import Callable
from functools import partial
from operator import imul
from typing import Final

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import assign
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.session import Drift, Session
from hpcdl.training.parts.split.model_group import holders, place_among
from hpcdl.training.parts.traits import Settings, Strategy


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
    The record has the replicas' drift before an average (:mod:`hpcdl.training.parts.session`).

    Messages: one allreduce of V bytes (the parameters) per average, one more per averaged state vector. Memory: no
    further vector.
    """
    among, place = holders(comm, session.group), place_among(comm, session.group)
    share, parameters = session.inputs.images_of(*place), session.replica.parameters
    # without an aggregation (the no-communication baseline) each rank averages with itself only
    weight = 1.0 if session.independent else share / session.global_batch
    begin = max(local_from, _first_drop(session.learning_rate, session.steps) if post_local else 0)
    drift = session.watch_drift(among.size)
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
                await _average(among, session, parameters, weight, drift)
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


async def _average(comm: Comm, session: Session, vector: Array, weight: float, drift: Drift | None = None) -> None:
    """Replace a vector by the sum of the ranks' vectors times their weights."""
    if drift is not None:
        drift.before(vector, weight)
    await comm.apply("weigh", partial(imul, vector, weight), vector.nbytes)
    await session.aggregate(comm, vector)
    if drift is not None:
        drift.after(vector)


async def _change_state(comm: Comm, among: Comm, session: Session, weight: float, change: str) -> None:
    """Keep, average or reset the optimizer's state."""
    for vector in session.optimizer.state.values() if change != "kept" else ():
        if change == "averaged":
            await _average(among, session, vector, weight)
        else:
            await comm.apply("reset", partial(assign, vector, 0), vector.nbytes)
    if change == "reset":
        session.optimizer.steps = 0


def check_rates(rate: Callable[[int], float], steps: int, settings: Settings) -> None:
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


def cycle(settings: Settings) -> int:
    """Return the period. Raises ValueError if it changes, or if the size of messages is unknown."""
    if settings["optimizer_state"] == "averaged":
        raise ValueError("the size of the averaged optimizer state is unknown")
    if settings["local_from"] or settings["post_local"]:
        raise ValueError("its period changes during training")
    return int(settings["period"])


def _first_drop(rate: Callable[[int], float], steps: int) -> int:
    """Return the first step whose rate is below that of the previous step; ``steps`` if there is none."""
    return next((step for step in range(1, steps) if rate(step) < rate(step - 1)), steps)


TRAITS: Final = Strategy(
    weighs_images=True,
    splits_layers=True,
    least={"period": 1, "local_from": 0},
    words={"optimizer_state": ("kept", "averaged", "reset")},
    check_rates=check_rates,
    cycle=cycle,
)
