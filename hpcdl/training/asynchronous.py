from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hpcdl.fabric.comm import partition
from hpcdl.training.backpropagation import gradient
from hpcdl.training.servers.client import Servers
from hpcdl.training.servers.delay_compensation import ADAPTIVE, CONSTANT, AdaptiveStrength, DelayCompensation
from hpcdl.training.servers.messages import Layout
from hpcdl.training.servers.server import Rules, Server
from hpcdl.training.snapshots import Snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.fabric.comm import Comm
    from hpcdl.training.session import Session

AGGREGATES: Final = False
SCALES_LOSS: Final = False
STOPS: Final = False
WEIGHS: Final = True

ALL: Final = "all"
"""As many gradients to an update as there are workers."""


async def asynchronous(
    comm: Comm,
    session: Session,
    *,
    collect: int | str = 1,
    bound: int | None = None,
    n_fetch: int = 1,
    n_push: int = 1,
    overlap: bool = False,
    servers: int = 1,
    dedicated: bool = False,
    scale_rate: str = "none",
    delay_compensation: str = "none",
    strength: float | None = None,
    warm_start: int = 0,
) -> None:
    """Parameter servers and workers at their own pace: Downpour, softsync, SSP and BSP are two numbers apart.

    A server updates its shard with the mean of ``collect`` gradients, and holds back a worker that is more than
    ``bound`` clocks (mini-batches of one worker) ahead of the slowest:

        collect 1, no bound       Downpour (Dean et al. 2012, section 4.1)
        collect W // n, no bound  n-softsync (Zhang, Gupta et al. 2016); ``"all"``: 1-softsync
        collect 1, bound s        SSP (Ho et al. 2013): at clock c a worker has all updates of clocks <= c - s - 1
        collect W, bound 0        BSP: synchronous training, to the last bit if that sums in the order of ranks

    A worker, one of W, trains on its share of one global batch after another: it fetches parameters every
    ``n_fetch`` steps, descends by its own gradient between, and pushes what has accrued after step 0 and every
    ``n_push`` steps. A fetch is one exchange with the push of the same step, if there is one, and is waited for,
    which with ``n_fetch`` 1 happens in every step and makes the mean staleness (W - 1) / ``collect``. A push
    without a fetch goes on beside the next gradient. With ``overlap`` all exchanges do, as in Downpour, and what a
    fetch brings is used a step later: the mean staleness is (2 W - 1) / ``collect``
    (:mod:`hpcdl.analysis.staleness`).

    The parameters are in ``servers`` shards, each with an optimizer of its own. They are kept by the first ranks
    beside their work, or by the last ranks that do nothing else (``dedicated``). ``scale_rate = "staleness"``
    divides a gradient's rate by its staleness where that is more than 1 (Zhang, Gupta et al. 2016). An update of
    several gradients has the mean of their rates, and takes their mean weighted by these: for optimizers linear in
    the gradient the paper's mean of rate x gradient, and for Adagrad, RMSProp and Adam, which divide by the
    gradients' size, the rate is scaled all the same.
    ``delay_compensation``, ``"constant"`` or ``"adaptive"`` with lambda = ``strength``, is
    :mod:`hpcdl.training.servers.delay_compensation`. In a ``warm_start`` of so many mini-batches worker 0 trains
    alone.

    An update has the session's rate however few gradients it is the mean of, so there are W / ``collect`` such
    steps to a global batch. All workers together train on steps x W mini-batches, the fast ones on more; the rate
    follows those that were applied. The servers' snapshots are tested after the end. Where shares are unequal each
    image counts as much as another: a worker's gradient is its share's part of the global one, times W, and its
    mini-batch as many steps as it is of a global batch. The last one may be more than what is left.

    Where a worker dies the others do its mini-batches, and if it was worker 0 a warm start is over. What a worker
    with ``n_push`` > 1 has trained on and not pushed is done again as well, unless the others have left: at the
    end they wait until all mini-batches are trained on, not until all are pushed. Shards agree on nothing, as in
    DistBelief: a worker that dies while it pushes leaves this one push with some of its servers and not with
    others, and whether others train on the mini-batches again is the first server's word. Where a server dies
    PeerLost is raised.
    """
    if session.replica.loss_scale != 1:
        raise ValueError("asynchronous training has no loss scaling; float32 and bfloat16 need none")
    layout = Layout.of(comm.size, servers, dedicated=dedicated)
    weights = session.shares.among(layout.workers)
    warm_start = min(warm_start, -(-session.steps * sum(weights) // weights[0]))
    rules = Rules(
        weights=weights,
        collect=layout.workers if collect == ALL else int(collect),
        bound=bound,
        scale_rate=scale_rate == "staleness",
        warm_start=warm_start,
    )
    snapshots = Snapshots(session)

    async def serve() -> None:
        compensation = _compensation(comm, session, layout, delay_compensation, strength)
        await Server(comm, session, layout, rules, snapshots, compensation).serve()

    async def work() -> None:
        shards = Servers(comm, session, layout, warm_start if comm.rank else 0, overlap=overlap)
        await _work(comm, session, shards, rules, snapshots, n_fetch=n_fetch, n_push=n_push, ahead=int(overlap))

    if not layout.works(comm.rank):
        await serve()
    elif layout.serves(comm.rank):
        serving = comm.start(serve(), shared_tags=True)
        await work()
        await serving
    else:
        await work()
    everybody = await comm.survivors()
    session.replica.parameters[:] = await snapshots.evaluate(everybody, "sum", worked=layout.works(comm.rank))


async def _work(
    comm: Comm,
    session: Session,
    servers: Servers,
    rules: Rules,
    snapshots: Snapshots,
    *,
    n_fetch: int,
    n_push: int,
    ahead: int,
) -> None:
    """Train as long as the servers grant mini-batches; a fetch is begun when ``ahead`` of them are left."""
    replica, workers = session.replica, len(rules.weights)
    servers.begin(push=False, wanted=n_fetch + ahead)
    await servers.settle()
    step = 0
    while servers.left:
        applied = servers.applied // rules.parts
        snapshots.note(applied)
        rate = session.learning_rate(min(applied, session.steps - 1))
        with session.journal.step(session.epoch(servers.clock), rate) as outcome:
            inputs = partial(session.input, servers.clock, comm.rank, workers)
            await gradient(comm, session, inputs, outcome, scale=1 / session.global_batch)
            await servers.accrue(replica.gradients)
            if n_fetch + ahead > 1:  # or these parameters are replaced before they are used
                # as a server does that applies this gradient alone
                replica.gradients *= rate * workers
                replica.parameters -= replica.gradients
            await servers.settle()
            push, fetch = step % n_push == 0, servers.left <= ahead
            if push or fetch:
                servers.begin(push=push, wanted=n_fetch if fetch else 0)
            if not servers.left:
                await servers.settle()
        step += 1
    await servers.leave()


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
    """Raise ValueError for settings of :func:`asynchronous` that cannot be."""
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
    if bound is not None:
        if overlap:
            raise ValueError("overlap: a worker that goes on with old parameters keeps no bound")
        # or a worker would wait for mini-batches that the slowest one has not pushed yet, or may not begin
        least = n_fetch + n_push - 2
        if bound < least:
            raise ValueError(f"bound: must be at least n_fetch + n_push - 2 = {least}, not {bound}")
    if settings["delay_compensation"] == "none":
        if settings["strength"] is not None:
            raise ValueError("strength: is for delay_compensation")
    elif n_fetch > 1 or n_push > 1 or overlap:
        raise ValueError(
            "delay_compensation: needs n_fetch = 1, n_push = 1 and no overlap, so that it knows the delay"
        )


def workers(ranks: int, settings: Mapping[str, Any]) -> range:
    """Return who trains on images."""
    return range(Layout.of(ranks, settings["servers"], dedicated=settings["dedicated"]).workers)


def mortal(ranks: int, settings: Mapping[str, Any]) -> range:
    """Return who may die: the workers that keep no shard."""
    return workers(ranks, settings)[0 if settings["dedicated"] else settings["servers"] :]


def most_steps(ranks: int, settings: Mapping[str, Any]) -> int:
    """Return how many steps one worker can take of a global batch: all mini-batches, were it alone."""
    return len(workers(ranks, settings))


def _check_choice(name: str, value: str, *valid: str) -> None:
    if value not in valid:
        raise ValueError(f"{name}: must be {' or '.join(map(repr, valid))}, not {value!r}")


def title(ranks: int, settings: Mapping[str, Any]) -> str:
    """Return what the literature calls it: Downpour, 2-softsync, SSP(3), BSP, DC-ASGD."""
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
