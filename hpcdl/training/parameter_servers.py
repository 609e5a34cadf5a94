"""Strategies with parameter servers, which :mod:`hpcdl.training.parts.server_client` describes."""

import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final

from hpcdl.fabric.comm import Comm
from hpcdl.optim.parts.protocol import change
from hpcdl.training.parts.server import Server
from hpcdl.training.parts.server_client import ALL, Client, Discards, Layout, Rules, ServedRank
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings, Strategy


async def asynchronous(
    comm: Comm,
    session: Session,
    *,
    servers: int = 1,
    dedicated: bool = False,
    delay_compensation: str = "none",
    strength: float | None = None,
) -> None:
    """Asynchronous SGD with parameter servers, and delay compensation (DC-ASGD; Zheng et al. 2017).

        worker:  x  <-  fetch parameters            server:  receive g of one worker
                 push g  =  gradient(x)                      g  <-  g + lambda g g (x - x last sent to the worker)
                                                             x  <-  optimizer(x, g)

    Without ``delay_compensation`` the server applies g as it is; this is Downpour that fetches and pushes at every
    step. A worker waits for its fetch, so that the mean staleness of W workers is W - 1.

    ``delay_compensation`` is ``"constant"`` or ``"adaptive"``, with lambda = ``strength``
    (:mod:`hpcdl.training.parts.server`).

    The parameters are divided among ``servers`` shards, each with its own optimizer. The first ranks are workers
    and servers; with ``dedicated`` the last ranks are servers only.
    """
    rules = Rules(servers=servers, dedicated=dedicated, delay_compensation=delay_compensation, strength=strength)
    await train_with_servers(comm, session, rules)


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
    first. If that worker fails, the warm start ends. ``servers``, ``dedicated``: see :func:`asynchronous`.
    """
    ahead = int(overlap)

    def descend(rate: float) -> None:
        replica = session.replica
        replica.gradients *= rate
        session.multipliers.scale(replica.gradients)
        replica.parameters -= replica.gradients

    async def work(client: Client) -> None:
        await client.fetch_first(n_fetch + ahead)
        step = 0
        while client.left:
            with client.mini_batch() as (outcome, rate):
                await client.compute_gradient(outcome)
                await client.accrue()
                if n_fetch + ahead > 1:  # otherwise a fetch replaces these parameters
                    # rate x workers: the update of a server that applies this gradient alone
                    await comm.compute("update", partial(descend, rate * local_rate * client.workers))
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


async def softsync(
    comm: Comm,
    session: Session,
    *,
    collect: int | str = ALL,
    scale_rate: str = "none",
    servers: int = 1,
    dedicated: bool = False,
) -> None:
    """n-softsync: an update is the mean of several gradients, however stale (Zhang, Gupta et al. 2016).

        worker:  x  <-  fetch parameters            server:  receive ``collect`` gradients g of any workers
                 push g  =  gradient(x)                      x  <-  optimizer(x, mean of the g)

    With W workers, n-softsync has ``collect`` = W // n; ``"all"``, W, is 1-softsync. A worker does not wait for
    the update. The mean staleness is (W - 1) / ``collect``.

    ``scale_rate = "staleness"`` divides a gradient's rate by its staleness if that exceeds 1. An update uses the
    gradients' mean weighted by these rates, and the mean rate. ``servers``, ``dedicated``: see
    :func:`asynchronous`.
    """
    rules = Rules(servers=servers, dedicated=dedicated, collect=collect, scale_rate=scale_rate == "staleness")
    await train_with_servers(comm, session, rules)


async def m_synchronous(
    comm: Comm, session: Session, *, collect: int | str = ALL, dedicated: bool = False
) -> None:
    """m-synchronous SGD: of W workers, W - m are backup workers (Chen et al. 2016, arXiv 1604.00981).

        worker:  x  <-  fetch parameters            server:  receive m gradients g of the present x
                 push g  =  gradient(x)                      x  <-  optimizer(x, mean of the g)
                                                             discard gradients of older x

    m is ``collect``. A worker whose gradient is in the update waits for the new parameters; the others fetch them
    with their late gradient. Mini-batches of discarded gradients are granted again, so that steps x W are applied.
    The record has their share, ``discarded_share``. With ``"all"``, W, it is synchronous training.

    There is one server, because two could discard different gradients: rank 0, or with ``dedicated`` the last
    rank, which is no worker.
    """
    rules = Rules(servers=1, dedicated=dedicated, collect=collect, discards=Discards())
    await train_with_servers(comm, session, rules)


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
    that it would make to the parameters. A server adds the mean of ``collect`` changes. ``servers``,
    ``dedicated``: see :func:`asynchronous`.
    """
    updates = push == "updates"
    rules = Rules(servers=servers, dedicated=dedicated, collect=collect, bound=bound, updates=updates)

    async def work(client: Client) -> None:
        replica, old = session.replica, session.vector("old parameters")

        def replace_by_update(rate: float) -> None:
            """Update the parameters; the gradients become the negative change / workers, as servers expect."""
            replica.gradients *= client.workers
            change(session.optimizer, replica.parameters, replica.gradients, rate, old)
            replica.gradients[:] = replica.parameters
            replica.gradients /= -client.workers
            replica.parameters += old

        await client.exchange_each_gradient(replace_by_update)

    await train_with_servers(comm, session, rules, work if updates else Client.exchange_each_gradient)


async def train_with_servers(
    comm: Comm,
    session: Session,
    rules: Rules,
    work: Callable[[Client], Coroutine[Any, Any, None]] = Client.exchange_each_gradient,
    *,
    overlap: bool = False,
) -> None:
    """Serve, work or both on this rank; test the snapshots of the servers after the end.

    ``work``: program of a worker. ``overlap``: parameters may arrive while it uses the old ones.
    """
    rank = ServedRank(comm, session, rules)
    layout, ranks = rank.layout, rank.ranks
    works = layout.works(ranks.rank)
    if not works:
        await Server(rank).serve()
    elif layout.serves(ranks.rank):
        serving = ranks.start(Server(rank).serve(), shared_tags=True)
        await work(Client(rank, overlap=overlap))
        await serving
    else:
        await work(Client(rank, overlap=overlap))
    survivors = await comm.survivors()
    session.replica.parameters[:] = await rank.snapshots.evaluate(survivors, "sum", worked=works)


def layout_of(ranks: int, settings: Settings) -> Layout:
    """Return the roles of ranks. Raises ValueError for too few ranks."""
    return Layout.of(ranks, settings.get("servers", 1), dedicated=settings["dedicated"])


def gradients_of(ranks: int, settings: Settings) -> int:
    """Return the gradients of an update."""
    collect = settings["collect"]
    return layout_of(ranks, settings).workers if collect == ALL else int(collect)


def _check(ranks: int, settings: Settings) -> None:
    """Raise ValueError for too few ranks, and for ``collect`` out of range if the strategy has it."""
    workers, collect = layout_of(ranks, settings).workers, settings.get("collect", ALL)
    if collect != ALL and not 1 <= collect <= workers:
        raise ValueError(f"collect: must be 1 to {workers}, the number of workers, or {ALL!r}, not {collect}")


def _check_strength(ranks: int, settings: Settings) -> None:
    _check(ranks, settings)
    if settings["delay_compensation"] == "none" and settings["strength"] is not None:
        raise ValueError("strength: needs delay_compensation")


def _check_local_rate(ranks: int, settings: Settings) -> None:
    _check(ranks, settings)
    if settings["local_rate"] != 1 and settings["n_fetch"] == 1 and not settings["overlap"]:
        raise ValueError("local_rate: needs n_fetch of at least 2, or overlap; otherwise workers update nothing")


def _title_of_softsync(ranks: int, settings: Settings) -> str:
    """Return n-softsync, with the largest n that has so many gradients in an update, if there is one."""
    gradients, workers = gradients_of(ranks, settings), layout_of(ranks, settings).workers
    splits = workers // gradients
    exact = workers // splits == gradients
    return f"{splits}-softsync" if exact else f"softsync collecting {gradients}"


def _title_of_m_synchronous(ranks: int, settings: Settings) -> str:
    """Return 3-synchronous, BSP."""
    gradients = gradients_of(ranks, settings)
    return "BSP" if gradients == layout_of(ranks, settings).workers else f"{gradients}-synchronous"


def _title_of_ssp(ranks: int, settings: Settings) -> str:
    """Return SSP(3), BSP."""
    gradients, bound = gradients_of(ranks, settings), settings["bound"]
    name = f"SSP({bound})" if gradients == 1 else f"SSP({bound}) collecting {gradients}"
    if bound == 0 and gradients == layout_of(ranks, settings).workers:
        name = "BSP"
    return f"{name} of updates" if settings["push"] == "updates" else name


def _gradients_in_flight(settings: Settings) -> int | None:
    """Return a worker's gradients between fetch and push; None if it does not fetch and push at every step."""
    every = settings["n_fetch"] == settings["n_push"] == 1
    return (2 if settings["overlap"] else 1) if every else None


def _workers(ranks: int, settings: Settings) -> range:
    return range(layout_of(ranks, settings).workers)


def _may_fail(ranks: int, settings: Settings) -> range:
    return _workers(ranks, settings)[0 if settings["dedicated"] else settings.get("servers", 1) :]


WITH_SERVERS: Final = Strategy(
    aggregates=False,
    scales_loss=False,
    stops_at_target=False,
    weighs_images=True,
    served=True,
    splits_layers=True,
    compresses=True,
    check=_check,
    workers=_workers,
    may_fail=_may_fail,
    shards=lambda settings: int(settings.get("servers", 1)),
    # one worker may train on all mini-batches of a global batch
    most_steps=lambda ranks, settings: len(_workers(ranks, settings)),
)
NAMES: Final = {"none": "Downpour", "constant": "DC-ASGD", "adaptive": "DC-ASGD-a"}
"""Names of the variants of delay compensation in the literature."""
OFFERS: Final = {
    function.__name__: function for function in (asynchronous, downpour, m_synchronous, softsync, ssp)
}
TRAITS: Final = {
    "asynchronous": replace(
        WITH_SERVERS,
        words={"delay_compensation": NAMES},
        check=_check_strength,
        title=lambda _ranks, settings: NAMES[settings["delay_compensation"]],
        gradients_in_flight=lambda _settings: 1,
    ),
    "downpour": replace(
        WITH_SERVERS,
        least={"n_fetch": 1, "n_push": 1, "warm_start": 0, "local_rate": 0},
        check=_check_local_rate,
        title=lambda _ranks, _settings: "Downpour",
        gradients_in_flight=_gradients_in_flight,
        cycle=lambda settings: math.lcm(settings["n_fetch"], settings["n_push"]),
    ),
    "m_synchronous": replace(
        WITH_SERVERS, words={"collect": (ALL,)}, title=_title_of_m_synchronous, splits_layers=False
    ),
    "softsync": replace(
        WITH_SERVERS,
        words={"collect": (ALL,), "scale_rate": ("none", "staleness")},
        title=_title_of_softsync,
        gradients_in_flight=lambda _settings: 1,
    ),
    "ssp": replace(
        WITH_SERVERS,
        least={"bound": 0},
        words={"collect": (ALL,), "push": ("gradients", "updates")},
        title=_title_of_ssp,
    ),
}
