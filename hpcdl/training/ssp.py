from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from hpcdl.fabric.comm import Array, Comm
from hpcdl.optim.parts.protocol import change
from hpcdl.training.parts.servers.client import Client
from hpcdl.training.parts.servers.rules import ALL, Rules
from hpcdl.training.parts.servers.strategy import WITH_SERVERS, gradients_of, layout_of, train_with_servers
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings


async def ssp(
    comm: Comm,
    session: Session,
    *,
    bound: int = 1,
    collect: int | str = 1,
    push: str = "gradients",
    servers: int = 1,
    dedicated: bool = False,
) -> None:
    """Stale synchronous parallel: a worker is at most ``bound`` clocks ahead (Ho et al. 2013); 0: BSP.

        worker, clock c:  x  <-  fetch parameters, which have all updates of clocks <= c - bound - 1
                          push g  =  gradient(x)
        server:           receive ``collect`` gradients g
                          x  <-  optimizer(x, mean of the g)

    A clock is one mini-batch of one worker. A server makes a worker wait if its next mini-batch would miss older
    updates. If all workers wait, an update uses fewer gradients than ``collect``. With ``bound`` 0 and ``collect``
    ``"all"`` it is BSP: synchronous training, bit for bit if that sums in rank order.

    ``push = "updates"``: as in the paper, each worker has the optimizer, with its own state, and pushes the change
    that it would make to the parameters. A server adds the mean of ``collect`` changes.

    ``servers``, ``dedicated``: see :func:`hpcdl.training.asynchronous.asynchronous`.
    """
    updates = push == "updates"
    rules = Rules(servers=servers, dedicated=dedicated, collect=collect, bound=bound, updates=updates)

    async def work(client: Client) -> None:
        old = session.vector("old parameters")
        await client.exchange_each_gradient(partial(_replace_by_update, client, old))

    await train_with_servers(comm, session, rules, work if updates else Client.exchange_each_gradient)


def _replace_by_update(client: Client, old: Array, rate: float) -> None:
    """Update the parameters; replace the gradients by the negative change / workers, scaled as gradients are."""
    replica, workers = client.session.replica, client.workers
    replica.gradients *= workers
    change(client.session.optimizer, replica.parameters, replica.gradients, rate, old)
    replica.gradients[:] = replica.parameters
    replica.gradients /= -workers
    replica.parameters += old


def title(ranks: int, settings: Settings) -> str:
    """Return SSP(3), BSP."""
    gradients, bound = gradients_of(ranks, settings), settings["bound"]
    name = f"SSP({bound})" if gradients == 1 else f"SSP({bound}) collecting {gradients}"
    if bound == 0 and gradients == layout_of(ranks, settings).workers:
        name = "BSP"
    return f"{name} of updates" if settings["push"] == "updates" else name


TRAITS: Final = replace(
    WITH_SERVERS,
    least={"bound": 0},
    words={"collect": (ALL,), "push": ("gradients", "updates")},
    title=title,
)
