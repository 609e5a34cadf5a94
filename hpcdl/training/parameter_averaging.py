from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hpcdl.registry import nearest
from hpcdl.training.backpropagation import gradient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.session import Session

WEIGHS: Final = True

_STATES: Final = ("kept", "averaged", "reset")


async def parameter_averaging(
    comm: Comm,
    session: Session,
    *,
    period: int = 1,
    optimizer_state: str = "kept",
    local_from: int = 0,
    post_local: bool = False,
) -> None:
    """Local SGD: ranks train alone, and every so many steps all replace their parameters by the average.

    An average comes every ``period`` steps (Deeplearning4j; Su & Chen 2015; local and post-local SGD: Lin et al.
    2020, arXiv 1808.07217). It is weighted by the images that each rank has consumed since the last one, so shares
    need not be equal; a test between two averages is of such an average, too.

    A rank's gradient is the mean over its own share of the batch, and the rate is the session's. With ``period``
    1, shares that do not change and an optimizer that is linear in the gradient (SGD, Nesterov, with decay), each
    step is then that of synchronous training; with Adagrad, RMSProp or Adam, or a longer period, it is not.

    The optimizer's state vectors are each rank's own (``"kept"``), averaged with the same weights
    (``"averaged"``), or set to zero at each average (``"reset"``). Its count of updates, by which Adam corrects
    its means, is the same on all ranks as it is; a reset begins it anew.

    Before step ``local_from`` the period is 1, with ``post_local`` also before the first step at which the
    learning rate falls (one that never falls, or always, wants ``local_from`` instead). The last step ends in an
    average.

    Memory: no vector of its own.
    """
    replica, optimizer = session.replica, session.optimizer
    begin = max(local_from, _first_drop(session.learning_rate, session.steps) if post_local else 0)
    since = images = 0
    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.epoch(step), rate) as outcome:
            await gradient(comm, session, partial(session.input, step, comm.rank, comm.size), outcome)
            await comm.compute("update", partial(optimizer.update, replica.parameters, replica.gradients, rate))
            since, images = since + 1, images + outcome.images
            if since >= period or step < begin or step + 1 == session.steps:
                # without an aggregation (the no-communication ceiling) a rank is all there is to average
                weight = 1.0 if session.independent else images / (since * session.global_batch)
                await _average(comm, session, replica.parameters, weight)
                if optimizer_state == "averaged":
                    for vector in optimizer.state.values():
                        await _average(comm, session, vector, weight)
                if optimizer_state == "reset":
                    for vector in optimizer.state.values():
                        vector[:] = 0
                    optimizer.steps = 0
                since = images = 0
        if session.evaluation_due(step + 1):
            if since and not session.independent:
                weight = comm.size * images / (since * session.global_batch)
                stop = await session.evaluate_average(comm, step + 1, replica.parameters, weight=weight)
            else:
                stop = await session.evaluate(comm, step + 1)
            if stop:
                if since and not session.independent:
                    await _average(comm, session, replica.parameters, images / (since * session.global_batch))
                return


def check(_ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that make no training."""
    for name, least in {"period": 1, "local_from": 0}.items():
        if settings[name] < least:
            raise ValueError(f"{name}: must be at least {least}, not {settings[name]}")
    optimizer_state = settings["optimizer_state"]
    if optimizer_state not in _STATES:
        raise ValueError(f"optimizer_state: unknown {optimizer_state!r}{nearest(optimizer_state, _STATES)}")


def check_rates(rate: Callable[[int], float], steps: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError where there would be no step of local training, or with ``post_local`` no other."""
    if settings["period"] == 1:
        return
    if settings["local_from"] >= steps:
        raise ValueError(f"local_from: {settings['local_from']}, but there are {steps} steps, none of them local")
    if settings["post_local"]:
        first = _first_drop(rate, steps)
        if first in {1, steps}:
            when = "never" if first == steps else "always"
            raise ValueError(f"post_local: the learning rate {when} falls; give local_from, the first local step")


async def _average(comm: Comm, session: Session, vector: Array, weight: float) -> None:
    vector *= weight
    await session.aggregate(comm, vector)


def _first_drop(rate: Callable[[int], float], steps: int) -> int:
    """The first step whose rate is below that of the step before it; the training's length if there is none."""
    return next((step for step in range(1, steps) if rate(step) < rate(step - 1)), steps)
