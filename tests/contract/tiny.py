"""A tiny training, of which a thousand take seconds: one linear layer on noise, 15 parameters."""

from functools import cache

import numpy as np

from contract import networks
from contract.sessions import noise, silent_journal, training_session
from hpcdl.aggregation.ring import ring
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.nn.backend import backend
from hpcdl.nn.layers import Flatten, Linear
from hpcdl.nn.replica import Replica
from hpcdl.optim.sgd import SGD
from hpcdl.training.parts.session import test_share as share_of_test
from hpcdl.training.parts.topologies import metropolis

RATE = 0.05

PARAMETERS = 15


def tiny_replica():
    replica = Replica([Flatten("flatten"), Linear("fc", 3)], (2, 2, 1), backend=backend("numpy"), dtype="float64")
    assert replica.parameters.size == PARAMETERS
    return replica


def tiny_session(recorder=None, *, start=None, **settings):
    """Return one rank's session; ``start`` replaces the initial parameters."""
    defaults = {
        "optimizer": SGD(),
        "aggregate": ring,
        "dataset": noise((2, 2, 1), 96, 4, 3),
        "journal": silent_journal(recorder),
        "learning_rate": lambda _step: RATE,
        "global_batch": 48,
        "steps": 3,
    }
    mine = training_session(**{"replica": settings.get("replica") or tiny_replica()} | defaults | settings)
    if start is not None:
        mine.replica.parameters[:] = start
    return mine


def gradient(mine, step, rank, ranks, at):
    """Return the gradient of the mean loss over a rank's share at the parameters ``at``."""
    replica = mine.replica
    replica.parameters[:] = at
    x, labels = mine.inputs.batch(step, rank, ranks)
    networks.step(replica, x, labels, 1 / max(1, len(labels)))
    return replica.gradients.copy()


def train(
    strategy,
    ranks,
    *,
    world=None,
    seed=0,
    own=None,
    recorders=None,
    pool=None,
    optimizer=SGD,
    keys=None,
    **settings,
):
    """Return the sessions of all ranks, which start from their rows of ``own``; ``pool``: their replicas."""

    async def program(comm):
        replica = {"replica": pool[comm.rank]} if pool else {}
        start = None if own is None else own[comm.rank]
        recorder = recorders and recorders[comm.rank]
        mine = tiny_session(recorder, start=start, **{"optimizer": optimizer(), **replica, **(keys or {})})
        await strategy(comm, mine, **settings)
        return mine

    return (world or in_process(ranks, seed)).run(program)


def parameters(sessions):
    """Return the parameters of all ranks, (ranks, n)."""
    return np.array([mine.replica.parameters for mine in sessions])


def starts(ranks, seed=0):
    """Return different parameters for each rank, (ranks, n)."""
    return np.random.default_rng(seed).normal(size=(ranks, PARAMETERS))


@cache
def replicas(ranks):
    """Return cached replicas, because making one takes longer than training it."""
    return [tiny_replica() for _ in range(ranks)]


def mixing_matrix(links):
    """Return the weights of gossip, (ranks, ranks), on a graph of the ``links`` of each rank."""
    rows = [metropolis(links, rank) for rank in range(len(links))]
    return np.array([[row.get(other, 0.0) for other in range(len(links))] for row in rows])


def loss_of_test(session):
    """The mean loss of a session's network over all test images."""
    test = session.inputs.dataset.test
    return share_of_test(session.replica, test, (0, 1), session.global_batch, 0, None)[0] / len(test)
