"""m-synchronous SGD applies only gradients of the present parameters, and workers may push updates instead."""

from itertools import groupby

import numpy as np
from contract import quadratic
from contract.asynchronous import Run, batch_gradient
from contract.schedules import SCHEDULES

from hpcdl import registry
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.optim.sgd import SGD
from hpcdl.training.synchronous import synchronous

NATIVE = registry.find("aggregation", "native")


def test_no_gradient_of_older_parameters_is_applied_in_any_schedule():
    """Each update has m gradients of different workers, the last ones perhaps fewer; none is lost."""
    for seed in SCHEDULES:
        workers = 2 + seed % 6
        collect = 1 + seed // 6 % workers
        failure = (workers - 1, 1 + seed % 3) if seed % 4 == 0 else None
        numbers = {"name": "m_synchronous", "collect": collect}
        run = Run(in_process(workers, seed), numbers=numbers, failure=failure)
        updates = run.updates()
        assert {update.staleness for update in updates} == {0}
        together = [[row.worker for row in rows] for _, rows in groupby(updates, lambda update: update.version)]
        assert all(len(set(group)) == len(group) <= collect for group in together)
        if failure is None:
            assert {len(group) for group in together[:-workers]} <= {collect}
            assert len(updates) == 6 * workers
            assert run.recorders[0].evaluations[-1].samples == 6 * quadratic.IMAGES


def test_a_slow_worker_delays_nothing_and_its_gradients_are_discarded():
    """Two of three workers: steps take the time of their gradients, and each has the mean of their two."""
    slowness = (1.0, 1.0, 5.5, 0.0)
    world = simulated(
        4,
        NETWORKS["ethernet-10g"],
        compute=lambda rank, label: slowness[rank] if label == "loss" else 0.0,
    )
    run = Run(world, numbers={"name": "m_synchronous", "collect": 2, "dedicated": True})
    expected = quadratic.QuadraticLoss(5, "float64").parameters
    for clock in range(9):  # 6 x 3 mini-batches, two in each update
        gradients = []
        for worker in range(2):
            images, total = batch_gradient(5, quadratic.IMAGES, clock, worker, 3)
            gradients.append(expected - total / images)
        expected = expected - quadratic.RATE / (1 + 2 * clock // 3) * np.mean(gradients, axis=0)
    np.testing.assert_allclose(run.parameters, expected, rtol=1e-12)
    assert [row.worker for row in run.updates(3)] == [0, 1] * 9
    assert [len(recorder.steps) for recorder in run.recorders] == [9, 9, 2, 0]

    async def fields(comm):
        return await run.sessions[comm.rank].watched[0].fields(comm)

    assert in_process(4).run(fields) == [{"discarded_share": 2 / 20}] * 4


def test_with_momentum_each_worker_has_its_own_velocity():
    """One worker is momentum SGD on one rank; three workers are not, and their velocities differ."""
    settings = {"optimizer": SGD(momentum=0.9), "learning_rate": lambda _step: 0.1}
    numbers = {"name": "ssp", "bound": 9, "push": "updates"}
    alone = Run(in_process(1), strategy=synchronous, aggregate=NATIVE, **settings)
    one = Run(in_process(2), numbers={**numbers, "dedicated": True}, **settings)
    np.testing.assert_allclose(one.parameters, alone.parameters, rtol=1e-12)
    pushed, usual = (
        Run(in_process(3, 1), numbers={**numbers, "collect": 2, "push": push}, **settings)
        for push in ("updates", "gradients")
    )
    assert np.abs(pushed.parameters - usual.parameters).max() > 1e-3
    velocities = [session.optimizer.state["velocity"] for session in pushed.sessions]
    assert np.abs(velocities[0] - velocities[1]).max() > 1e-3
