from __future__ import annotations

from dataclasses import replace
from typing import Final

from hpcdl.fabric.comm import Comm
from hpcdl.training.parts.servers.rules import ALL, Rules
from hpcdl.training.parts.servers.strategy import WITH_SERVERS, gradients_of, layout_of, train_with_servers
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings


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
    gradients' mean weighted by these rates, and the mean rate.

    ``servers``, ``dedicated``: see :func:`hpcdl.training.asynchronous.asynchronous`.
    """
    rules = Rules(servers=servers, dedicated=dedicated, collect=collect, scale_rate=scale_rate == "staleness")
    await train_with_servers(comm, session, rules)


def title(ranks: int, settings: Settings) -> str:
    """Return n-softsync, with the largest n that has so many gradients in an update, if there is one."""
    gradients, workers = gradients_of(ranks, settings), layout_of(ranks, settings).workers
    splits = workers // gradients
    exact = workers // splits == gradients
    return f"{splits}-softsync" if exact else f"softsync collecting {gradients}"


TRAITS: Final = replace(
    WITH_SERVERS,
    words={"collect": (ALL,), "scale_rate": ("none", "staleness")},
    title=title,
    gradients_in_flight=lambda _settings: 1,
)
