from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Final

from hpcdl.fabric.comm import Comm
from hpcdl.training.parts.servers.client import Client
from hpcdl.training.parts.servers.rules import Rules
from hpcdl.training.parts.servers.strategy import WITH_SERVERS, check_servers, train_with_servers
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings


async def downpour(
    comm: Comm,
    session: Session,
    *,
    n_fetch: int = 1,
    n_push: int = 1,
    overlap: bool = False,
    local_rate: float = 1.0,
    warm_start: int = 0,
    servers: int = 1,
    dedicated: bool = False,
) -> None:
    """Downpour SGD: fetches every n_fetch steps, pushes every n_push steps (Dean et al. 2012, section 4.1).

        worker:  every n_fetch steps  fetch parameters x        server:  receive a push
                 g  <-  gradient(x)                                      x  <-  optimizer(x, push)
                 accrued  <-  accrued + g,  x  <-  x - rate g
                 every n_push steps   push accrued,  accrued  <-  0

    A worker updates its own copy between fetches, at ``local_rate`` times the servers' rate. It pushes after step
    0 and then every ``n_push`` steps. It waits for a fetch; a push alone overlaps with the next gradient.
    With ``overlap`` fetches overlap too, as in the paper. With ``n_fetch`` = 1 the mean staleness of W workers is
    W - 1, with ``overlap`` 2 W - 1.

    The paper has Adagrad on the servers. ``warm_start``: number of mini-batches on which worker 0 trains alone at
    first. If that worker fails, the warm start ends.

    ``servers``, ``dedicated``: see :func:`hpcdl.training.asynchronous.asynchronous`.
    """
    ahead = int(overlap)

    async def work(client: Client) -> None:
        await client.fetch_first(n_fetch + ahead)
        step = 0
        while client.left:
            with client.mini_batch() as (outcome, rate):
                await client.compute_gradient(outcome)
                await client.accrue()
                if n_fetch + ahead > 1:  # otherwise a fetch replaces these parameters
                    # rate x workers: the update of a server that applies this gradient alone
                    await comm.compute("update", partial(_descend, session, rate * local_rate * client.workers))
                await client.finish()
                push, fetch = step % n_push == 0, client.left <= ahead
                if push or fetch:
                    client.begin(push=push, wanted=n_fetch if fetch else 0)
                if not client.left:
                    await client.finish()
            step += 1
        await client.leave()

    rules = Rules(servers=servers, dedicated=dedicated, warm_start=warm_start)
    await train_with_servers(comm, session, rules, work, overlap=overlap)


def _descend(session: Session, rate: float) -> None:
    replica = session.replica
    replica.gradients *= rate
    session.multipliers.scale(replica.gradients)
    replica.parameters -= replica.gradients


def check(ranks: int, settings: Settings) -> None:
    """Raise ValueError for invalid settings."""
    check_servers(ranks, settings)
    if settings["local_rate"] != 1 and settings["n_fetch"] == 1 and not settings["overlap"]:
        raise ValueError("local_rate: needs n_fetch of at least 2, or overlap; otherwise workers update nothing")


def gradients_in_flight(settings: Settings) -> int | None:
    """Return a worker's gradients between fetch and push; None if it does not fetch and push at every step."""
    every = settings["n_fetch"] == settings["n_push"] == 1
    return (2 if settings["overlap"] else 1) if every else None


TRAITS: Final = replace(
    WITH_SERVERS,
    least={"n_fetch": 1, "n_push": 1, "warm_start": 0, "local_rate": 0},
    check=check,
    title=lambda _ranks, _settings: "Downpour",
    gradients_in_flight=gradients_in_flight,
    cycle=lambda settings: math.lcm(settings["n_fetch"], settings["n_push"]),
)
