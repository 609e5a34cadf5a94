from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import partition
from hpcdl.optim.parts.protocol import change
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.servers.client import Client
from hpcdl.training.parts.servers.messages import Layout, Transfers
from hpcdl.training.parts.servers.server import (
    STRENGTHS,
    DelayCompensation,
    Discards,
    Rules,
    Server,
)
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.snapshots import Snapshots
from hpcdl.training.parts.split.replicas import holders, place_among
from hpcdl.training.parts.traits import Strategy, check_choice, check_least

ALL: Final = "all"
"""Value of ``collect``: one gradient per worker."""


async def asynchronous(
    comm: Comm,
    session: Session,
    *,
    collect: int | str = 1,
    bound: int | None = None,
    n_fetch: int = 1,
    n_push: int = 1,
    overlap: bool = False,
    local_rate: float = 1.0,
    servers: int = 1,
    dedicated: bool = False,
    scale_rate: str = "none",
    delay_compensation: str = "none",
    strength: float | None = None,
    warm_start: int = 0,
    stale: str = "apply",
    push: str = "gradients",
) -> None:
    """Asynchronous SGD with parameter servers: Downpour, softsync, SSP, BSP and m-synchronous. No common step.

        worker:  every n_fetch steps  fetch parameters x        server:  receive ``collect`` gradients
                 g  <-  gradient(x)                                      x  <-  optimizer(x, mean of them)
                 every n_push steps   push the sum of g

    A server makes a worker wait if its next mini-batch would miss updates of more than ``bound`` clocks; a clock
    is one mini-batch of one worker. If all workers wait, an update uses fewer gradients than ``collect``. With W
    workers:

        collect 1, no bound       Downpour (Dean et al. 2012, section 4.1)
        collect W // n, no bound  n-softsync (Zhang, Gupta et al. 2016); ``"all"``: 1-softsync
        collect 1, bound s        SSP (Ho et al. 2013): at clock c a worker has all updates of clocks <= c - s - 1;
                                  this holds for any ``collect``
        collect W, bound 0        BSP: synchronous training, bit for bit if that sums in rank order
        collect m, stale "drop"   m-synchronous SGD, with W - m backup workers (Chen et al. 2016, arXiv 1604.00981)

    Between fetches a worker applies its own gradients to its copy, at ``local_rate`` times the servers' rate. It
    pushes after step 0 and then every ``n_push`` steps. It waits for a fetch; a push without a fetch overlaps with
    the next gradient. With ``n_fetch`` = 1 the mean staleness is (W - 1) / ``collect``. With ``overlap`` fetches
    overlap too, as in Downpour, and the mean staleness is (2 W - 1) / ``collect``.

    ``stale = "drop"``: a server discards a gradient of older parameters, and its worker fetches the present ones.
    A worker whose gradient is kept waits for the update. Mini-batches of discarded gradients are granted again, so
    that steps x W are applied.

    ``push = "updates"``: each worker has the optimizer, with its own state, and pushes the change that it would
    make to the parameters. A server adds the mean of ``collect`` changes.

    ``servers``: number of shards of the parameters, each with its own optimizer. The first ranks are workers and
    servers; with ``dedicated`` the last ranks are servers only.

    ``scale_rate = "staleness"`` divides a gradient's rate by its staleness if that exceeds 1 (Zhang, Gupta et al.
    2016). An update of several gradients uses their mean weighted by these rates, and the mean rate.

    ``delay_compensation`` is ``"constant"`` or ``"adaptive"``, with lambda = ``strength``
    (:mod:`hpcdl.training.parts.servers.server`). ``warm_start``: number of mini-batches on which
    worker 0 trains alone at first.

    Every update has the session's rate, so a global batch makes W / ``collect`` updates. All workers together
    train on steps x W mini-batches, fast workers on more. The rate depends on the number of mini-batches applied.
    If shares are unequal a worker's gradient is its part of the global gradient times W, and its mini-batch counts
    by its share. Evaluations, after the end, test the servers' snapshots.

    If a worker fails the others train on its mini-batches that were not pushed; if it was worker 0 a warm start
    ends. Its last push may reach only some servers, as in DistBelief. If a server fails PeerLost is raised.

    On a mesh each model group is one worker, and every part of the layers has ``servers`` of its own. A group
    follows its first rank. A failed rank ends the training.

    Messages per exchange and server: a request, V / ``servers`` bytes with a push; an answer and V / ``servers``
    bytes with a fetch. With a compressor a push has its message for each shard. A fetch has 16 bits per parameter
    with fp16 and bf16 (:mod:`hpcdl.training.parts.servers.messages`).
    """
    if session.replica.loss_scale != 1:
        raise ValueError("asynchronous training has no loss scaling; float32 and bfloat16 need none")
    ranks = holders(comm, session)
    layout = Layout.of(ranks.size, servers, dedicated=dedicated)
    weights = session.inputs.shares.among(layout.workers)
    warm_start = min(warm_start, -(-session.steps * sum(weights) // weights[0]))
    rules = Rules(
        weights=weights,
        collect=layout.workers if collect == ALL else int(collect),
        bound=bound,
        scale_rate=scale_rate == "staleness",
        warm_start=warm_start,
        drop=stale == "drop",
        updates=push == "updates",
    )
    discards = Discards()
    if rules.drop:
        session.watched.append(discards)
    snapshots, transfers = Snapshots(session), Transfers(ranks, session, layout)

    async def serve() -> None:
        compensation = _compensation(ranks, session, layout, delay_compensation, strength)
        await Server(ranks, session, layout, transfers, rules, snapshots, discards, compensation).serve()

    async def work() -> None:
        client = Client(ranks, session, layout, transfers, warm_start if ranks.rank else 0, overlap=overlap)
        await _work(
            comm,
            session,
            client,
            rules,
            snapshots,
            n_fetch=n_fetch,
            n_push=n_push,
            ahead=int(overlap),
            local_rate=local_rate,
        )

    if not layout.works(ranks.rank):
        await serve()
    elif layout.serves(ranks.rank):
        serving = ranks.start(serve(), shared_tags=True)
        await work()
        await serving
    else:
        await work()
    survivors = await comm.survivors()
    session.replica.parameters[:] = await snapshots.evaluate(survivors, "sum", worked=layout.works(ranks.rank))


async def _work(
    comm: Comm,
    session: Session,
    client: Client,
    rules: Rules,
    snapshots: Snapshots,
    *,
    n_fetch: int,
    n_push: int,
    ahead: int,
    local_rate: float,
) -> None:
    """Train while the servers grant mini-batches; start a fetch when ``ahead`` of them are left."""
    replica, workers = session.replica, len(rules.weights)
    old = session.vector("old parameters") if rules.updates else None
    number, _ = place_among(comm, session)
    client.begin(push=False, wanted=n_fetch + ahead)
    await client.finish()
    step = 0
    while client.left:
        applied = client.applied // rules.parts
        snapshots.note_progress(applied)
        rate = session.learning_rate(min(applied, session.steps - 1))
        with session.journal.step(session.inputs.epoch(client.clock), rate) as outcome:
            inputs = partial(session.inputs.load, client.clock, number, workers)
            await gradient(comm, session, inputs, outcome, scale=1 / session.global_batch)
            if old is not None:
                await comm.compute("update", partial(_replace_by_update, session, rate, workers, old))
            await client.accrue(replica.gradients)
            if old is None and n_fetch + ahead > 1:  # otherwise a fetch replaces these parameters
                # rate x workers: the update of a server that applies this gradient alone
                await comm.compute("update", partial(_descend, session, rate * local_rate * workers))
            await client.finish()
            push, fetch = step % n_push == 0, client.left <= ahead
            if push or fetch:
                client.begin(push=push, wanted=n_fetch if fetch else 0)
            if not client.left:
                await client.finish()
        step += 1
    await client.leave()


def _descend(session: Session, rate: float) -> None:
    """Subtract the gradients times ``rate`` from the parameters."""
    replica = session.replica
    replica.gradients *= rate
    session.multipliers.scale(replica.gradients)
    replica.parameters -= replica.gradients


def _replace_by_update(session: Session, rate: float, workers: int, old: Array) -> None:
    """Update the parameters; replace the gradients by the negative change / workers, scaled as gradients are."""
    x, gradients = session.replica.parameters, session.replica.gradients
    gradients *= workers
    change(session.optimizer, x, gradients, rate, old)
    gradients[:] = x
    gradients /= -workers
    x += old


def _compensation(
    comm: Comm, session: Session, layout: Layout, kind: str, strength: float | None
) -> DelayCompensation | None:
    if kind == "none":
        return None
    size = layout.shards(session.replica.parameters)[comm.rank - layout.first].size
    backups = partition(session.vector("backups", layout.workers * size), layout.workers)
    mean_square = session.vector("mean square", size) if kind == "adaptive" else None
    return DelayCompensation(backups, STRENGTHS[kind] if strength is None else strength, mean_square)


def check(ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for invalid settings."""
    workers = Layout.of(ranks, settings["servers"], dedicated=settings["dedicated"]).workers
    names = ("collect", "bound", "overlap", "n_fetch", "n_push")
    collect, bound, overlap, n_fetch, n_push = (settings[name] for name in names)
    if isinstance(collect, str):
        check_choice("collect", collect, ALL)
    elif not 1 <= collect <= workers:
        raise ValueError(f"collect: must be 1 to {workers}, the number of workers, or {ALL!r}, not {collect}")
    check_least(settings, n_fetch=1, n_push=1, warm_start=0, local_rate=0)
    check_choice("scale_rate", settings["scale_rate"], "none", "staleness")
    check_choice("delay_compensation", settings["delay_compensation"], "none", "constant", "adaptive")
    check_choice("stale", settings["stale"], "apply", "drop")
    check_choice("push", settings["push"], "gradients", "updates")
    if settings["stale"] == "drop":
        alone = {"servers": 1, "n_fetch": 1, "n_push": 1, "overlap": False, "bound": None, "scale_rate": "none"}
        for name, value in {**alone, "delay_compensation": "none"}.items():
            if settings[name] != value:
                reason = "servers may keep different gradients" if name == "servers" else "no gradient is stale"
                raise ValueError(f'{name}: stale = "drop" needs its default, because {reason}')
    if settings["push"] == "updates" and (settings["local_rate"] != 1 or settings["delay_compensation"] != "none"):
        raise ValueError('push: "updates" needs local_rate = 1 and no delay_compensation')
    if settings["local_rate"] != 1 and n_fetch == 1 and not overlap:
        raise ValueError("local_rate: needs n_fetch of at least 2, or overlap; otherwise workers update nothing")
    if bound is not None:
        if overlap:
            raise ValueError("overlap: a worker that trains on old parameters cannot keep a bound")
        # below it, a worker would wait for mini-batches that the slowest worker has not pushed or may not begin
        least = n_fetch + n_push - 2
        if bound < least:
            raise ValueError(f"bound: must be at least n_fetch + n_push - 2 = {least}, not {bound}")
    if settings["delay_compensation"] == "none":
        if settings["strength"] is not None:
            raise ValueError("strength: needs delay_compensation")
    elif n_fetch > 1 or n_push > 1 or overlap:
        raise ValueError(
            "delay_compensation: needs n_fetch = 1, n_push = 1 and no overlap, so that the delay is known"
        )


def workers(ranks: int, settings: Mapping[str, Any]) -> range:
    """Return the ranks that train on images."""
    return range(Layout.of(ranks, settings["servers"], dedicated=settings["dedicated"]).workers)


def may_fail(ranks: int, settings: Mapping[str, Any]) -> range:
    """Return the ranks that may fail: the workers that are no servers."""
    return workers(ranks, settings)[0 if settings["dedicated"] else settings["servers"] :]


def most_steps(ranks: int, settings: Mapping[str, Any]) -> int:
    """Return the most steps of one worker per global batch: it may train on all mini-batches."""
    return len(workers(ranks, settings))


def gradients_in_flight(settings: Mapping[str, Any]) -> int | None:
    """Return a worker's gradients between fetch and push; None with a bound, or if a number is not 1."""
    waits = settings["bound"] is not None or settings["stale"] == "drop"
    waits = waits or settings["n_fetch"] != 1 or settings["n_push"] != 1
    return None if waits else 2 if settings["overlap"] else 1


def cycle(settings: Mapping[str, Any]) -> int:
    """Return the steps of a worker after which fetches and pushes repeat."""
    return math.lcm(settings["n_fetch"], settings["n_push"])


def title(ranks: int, settings: Mapping[str, Any]) -> str:
    """Return the name in the literature: Downpour, 2-softsync, SSP(3), BSP, 3-synchronous, DC-ASGD."""
    name = _title(ranks, settings)
    return f"{name} of updates" if settings["push"] == "updates" else name


def _title(ranks: int, settings: Mapping[str, Any]) -> str:
    workers = Layout.of(ranks, settings["servers"], dedicated=settings["dedicated"]).workers
    gradients = workers if settings["collect"] == ALL else int(settings["collect"])
    bound = settings["bound"]
    if gradients == workers and (bound == 0 or settings["stale"] == "drop"):
        return "BSP"
    if settings["stale"] == "drop":
        return f"{gradients}-synchronous"
    if bound is not None:
        return f"SSP({bound})" if gradients == 1 else f"SSP({bound}) collecting {gradients}"
    if gradients > 1:
        splits = workers // gradients  # the largest n with workers // n == gradients, if there is one
        exact = workers // splits == gradients
        return f"{splits}-softsync" if exact else f"softsync collecting {gradients}"
    return {"none": "Downpour", "constant": "DC-ASGD", "adaptive": "DC-ASGD-a"}[settings["delay_compensation"]]


TRAITS: Final = Strategy(
    aggregates=False,
    scales_loss=False,
    stops_at_target=False,
    weighs_images=True,
    served=True,
    splits_layers=True,
    compresses=True,
    check=check,
    title=title,
    workers=workers,
    may_fail=may_fail,
    most_steps=most_steps,
    gradients_in_flight=gradients_in_flight,
    cycle=cycle,
)
