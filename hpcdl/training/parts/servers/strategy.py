"""What strategies with servers share: the program of a rank, the checks of settings, and the traits."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from hpcdl.fabric.comm import Comm
from hpcdl.training.parts.servers.client import Client
from hpcdl.training.parts.servers.messages import Layout
from hpcdl.training.parts.servers.rules import ALL, Rules, ServedRank
from hpcdl.training.parts.servers.server import Server
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings, Strategy


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


def check_servers(ranks: int, settings: Settings) -> None:
    """Raise ValueError for too few ranks, and for ``collect`` out of range if the strategy has it."""
    workers, collect = layout_of(ranks, settings).workers, settings.get("collect", ALL)
    if collect != ALL and not 1 <= collect <= workers:
        raise ValueError(f"collect: must be 1 to {workers}, the number of workers, or {ALL!r}, not {collect}")


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
    check=check_servers,
    workers=_workers,
    may_fail=_may_fail,
    shards=lambda settings: int(settings.get("servers", 1)),
    # one worker may train on all mini-batches of a global batch
    most_steps=lambda ranks, settings: len(_workers(ranks, settings)),
)
