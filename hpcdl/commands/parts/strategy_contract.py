"""Contract of a training strategy, checked on ranks of one process: deadlocks, images, losses, equal steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl import suite
from hpcdl.commands.parts.scheme_contract import Check
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.journal import Journal

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.parts.traits import Strategy


RANKS: Final = (1, 2, 3, 4)
SCHEDULES: Final = 3
"""Random orders in which the ranks take turns, for each number of ranks."""
STEPS: Final = 6
BATCH: Final = 24
"""Images of a step, of all ranks: divisible by each of RANKS."""
TRAINING: Final = f"""
[suite]
name = "check"
[[case]]
kind = "train"
model = "lenet5"
dataset = "digits"
learning_rate = 0.01
global_batch = {BATCH}
steps = {STEPS}
training = %s
ranks = %d
"""


def check_strategy(name: str, traits: Strategy) -> Iterator[Check]:
    """Yield the result of each check of the strategy ``name``, an ``async def`` over a communicator and a session.

    Numbers of ranks that the strategy refuses are left out.
    """
    steps, refused = {}, ""
    for ranks in RANKS:
        try:
            (case,) = suite.parse(TRAINING % (json.dumps(name), ranks), "check").cases
        except suite.UsageError as error:
            refused = str(error)
            continue
        for schedule in range(SCHEDULES):
            try:
                steps[ranks, schedule] = _train(case, schedule)
            except Exception as error:  # noqa: BLE001 - the strategy is a user's and may raise anything
                where = f"{ranks} ranks, schedule {schedule}"
                yield Check(holds=False, what="trains", detail=f"{where}: {type(error).__name__}: {error}")
                return
    if not steps:
        yield Check(holds=False, what="trains", detail=refused)
        return
    numbers = sorted({ranks for ranks, _ in steps})
    yield Check(
        holds=True,
        what="trains",
        detail=f"{STEPS} steps of LeNet-5, {SCHEDULES} schedules each, on {numbers} ranks",
    )
    images = {of: sum(int(rows["images"].sum()) for rows in ranks) for of, ranks in steps.items()}
    yield _check("each image of the batches once", {of: total == STEPS * BATCH for of, total in images.items()})
    finite = {of: all(np.isfinite(rows["loss"]).all() for rows in ranks) for of, ranks in steps.items()}
    yield _check("finite losses", finite)
    if traits.lockstep:
        equal = {of: all(len(rows) == STEPS for rows in ranks) for of, ranks in steps.items()}
        yield _check("equal steps of all ranks, as declared (lockstep)", equal)
        same = {
            of: all(np.array_equal(a["loss"], b["loss"]) for a, b in zip(ranks, steps[of[0], 0], strict=True))
            for of, ranks in steps.items()
        }
        yield _check("equal losses in all schedules (lockstep)", same)


def _check(what: str, holds: dict[tuple[int, int], bool]) -> Check:
    for (ranks, schedule), right in holds.items():
        if not right:
            return Check(holds=False, what=what, detail=f"not on {ranks} ranks, schedule {schedule}")
    return Check(holds=True, what=what, detail=f"{len(holds)} trainings")


def _train(case: suite.Case, schedule: int) -> list[Array]:
    """Train in this process; return the recorded steps of each rank."""
    recorders = [Recorder(events=False) for _ in range(case.ranks)]

    async def rank(comm: Comm) -> None:
        journal = Journal(recorders[comm.rank], lambda: Counters(0, 0, 0, 0, 0))
        await case.module.program(case.spec, journal)(comm)

    in_process(case.ranks, schedule).run(rank)
    return [recorder.pack()["steps"] for recorder in recorders]
