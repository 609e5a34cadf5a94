from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hpcdl.fabric.vectors import partition
from hpcdl.training.parts.asynchronous.client import Client
from hpcdl.training.parts.asynchronous.messages import Layout, Transfers
from hpcdl.training.parts.asynchronous.server import (
    ADAPTIVE,
    CONSTANT,
    AdaptiveStrength,
    DelayCompensation,
    Rules,
    Server,
)
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.replicas import holders, place_among
from hpcdl.training.parts.snapshots import Snapshots
from hpcdl.training.parts.traits import Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.fabric.comm import Comm
    from hpcdl.training.parts.session import Session

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
) -> None:
    """Asynchronous SGD with parameter servers: Downpour, softsync, SSP and BSP. No common step.

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

    ``n_fetch``, ``n_push``: between fetches a worker applies its own gradients to its copy; it pushes after step 0
    and then every ``n_push`` steps. A worker waits for a fetch, which is one exchange with the push of the same
    step. With ``n_fetch`` = 1 the mean staleness is (W - 1) / ``collect``. A push without a fetch overlaps with
    the next gradient. With ``overlap`` all exchanges overlap with it, as in Downpour; fetched parameters are used
    one step later, and the mean staleness is (2 W - 1) / ``collect`` (:mod:`hpcdl.analysis.run.outcome`).
    ``local_rate``: the workers' rate between fetches by that of the servers.

    ``servers``: number of shards of the parameters, each with its own optimizer. The first ranks are workers and
    servers; with ``dedicated`` the last ranks are servers only.

    ``scale_rate = "staleness"`` divides a gradient's rate by its staleness if that exceeds 1 (Zhang, Gupta et al.
    2016). An update of several gradients uses their mean weighted by these rates, and the mean rate. That is the
    paper's mean of rate x gradient for optimizers that are linear in the gradient. For Adagrad, RMSProp and Adam,
    which divide by the gradient's size, it scales the rate too.

    ``delay_compensation`` is ``"constant"`` or ``"adaptive"``, with lambda = ``strength``
    (:mod:`hpcdl.training.parts.asynchronous.server`). ``warm_start``: number of mini-batches on which
    worker 0 trains alone at first.

    Every update has the session's rate, so a global batch makes W / ``collect`` updates. All workers together
    train on steps x W mini-batches, fast workers on more. The rate depends on the number of mini-batches applied.
    If shares are unequal every image has the same weight: a worker's gradient is its part of the global gradient
    times W, and its mini-batch counts by its share. The last mini-batch may exceed the remaining part.
    Evaluations, after the end, test the servers' snapshots.

    If a worker fails the others train on its mini-batches; if it was worker 0 a warm start ends. Mini-batches that
    the failed worker had not pushed (``n_push`` > 1) are repeated too, unless the others have already left.
    Servers do not agree with each other, as in DistBelief: the last push of a failed worker may reach only some of
    them. The first server decides whether its mini-batches are repeated. If a server fails PeerLost is raised.

    On a mesh each model group is one worker. Every part of the layers has ``servers`` of its own, among the ranks
    that hold the part; ``dedicated`` ones are whole model groups. The first rank of a group takes the mini-batches
    that its servers grant, and the group follows it. A failed rank ends the training.

    Messages per exchange and server: a request, V / ``servers`` bytes with a push; an answer and V / ``servers``
    bytes with a fetch. With a compressor a push has its message for each shard. A fetch has 16 bits per parameter
    with fp16 and bf16 (:mod:`hpcdl.training.parts.asynchronous.messages`).
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
    )
    snapshots, transfers = Snapshots(session), Transfers(ranks, session, layout)

    async def serve() -> None:
        compensation = _compensation(ranks, session, layout, delay_compensation, strength)
        await Server(ranks, session, layout, transfers, rules, snapshots, compensation).serve()

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
            local=local_rate * layout.workers,
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
    local: float,
) -> None:
    """Train while the servers grant mini-batches; start a fetch when ``ahead`` of them are left."""
    replica, workers = session.replica, len(rules.weights)
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
            await client.accrue(replica.gradients)
            if n_fetch + ahead > 1:  # otherwise the fetch replaces these parameters before their next use
                # rate x workers: the update of a server that applies this gradient alone
                await comm.compute("update", partial(_descend, session, rate * local))
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


def _compensation(
    comm: Comm, session: Session, layout: Layout, kind: str, strength: float | None
) -> DelayCompensation | None:
    if kind == "none":
        return None
    size = layout.shards(session.replica.parameters)[comm.rank - layout.first].size
    backups = partition(session.vector("backups", layout.workers * size), layout.workers)
    if kind == "constant":
        constant = CONSTANT if strength is None else strength
        return DelayCompensation(backups, lambda _gradient: constant)
    mean_square = session.vector("mean square", size)
    return DelayCompensation(backups, AdaptiveStrength(mean_square, ADAPTIVE if strength is None else strength))


def check(ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for invalid settings."""
    workers = Layout.of(ranks, settings["servers"], dedicated=settings["dedicated"]).workers
    collect, bound, overlap = settings["collect"], settings["bound"], settings["overlap"]
    if isinstance(collect, str):
        _check_choice("collect", collect, ALL)
    elif not 1 <= collect <= workers:
        raise ValueError(f"collect: must be 1 to {workers}, the number of workers, or {ALL!r}, not {collect}")
    for name, least in {"n_fetch": 1, "n_push": 1, "warm_start": 0}.items():
        if settings[name] < least:
            raise ValueError(f"{name}: must be at least {least}, not {settings[name]}")
    _check_choice("scale_rate", settings["scale_rate"], "none", "staleness")
    _check_choice("delay_compensation", settings["delay_compensation"], "none", "constant", "adaptive")
    n_fetch, n_push = settings["n_fetch"], settings["n_push"]
    if settings["local_rate"] < 0:
        raise ValueError(f"local_rate: must be at least 0, not {settings['local_rate']}")
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
    waits = settings["bound"] is not None or settings["n_fetch"] != 1 or settings["n_push"] != 1
    return None if waits else 2 if settings["overlap"] else 1


def cycle(settings: Mapping[str, Any]) -> int:
    """Return the steps of a worker after which fetches and pushes repeat."""
    return math.lcm(settings["n_fetch"], settings["n_push"])


def _check_choice(name: str, value: str, *valid: str) -> None:
    if value not in valid:
        raise ValueError(f"{name}: must be {' or '.join(map(repr, valid))}, not {value!r}")


def title(ranks: int, settings: Mapping[str, Any]) -> str:
    """Return the name in the literature: Downpour, 2-softsync, SSP(3), BSP, DC-ASGD."""
    workers = Layout.of(ranks, settings["servers"], dedicated=settings["dedicated"]).workers
    gradients = workers if settings["collect"] == ALL else int(settings["collect"])
    bound = settings["bound"]
    if gradients == workers and bound == 0:
        return "BSP"
    if bound is not None:
        return f"SSP({bound})" if gradients == 1 else f"SSP({bound}) collecting {gradients}"
    if gradients > 1:
        splits = [n for n in range(1, workers + 1) if workers // n == gradients]
        return f"{splits[0]}-softsync" if splits else f"softsync collecting {gradients}"
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
