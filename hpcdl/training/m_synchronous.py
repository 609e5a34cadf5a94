from __future__ import annotations

from dataclasses import replace
from typing import Final

from hpcdl.fabric.comm import Comm
from hpcdl.training.parts.servers.rules import ALL, Discards, Rules
from hpcdl.training.parts.servers.strategy import WITH_SERVERS, gradients_of, layout_of, train_with_servers
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings


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
    await train_with_servers(
        comm, session, Rules(servers=1, dedicated=dedicated, collect=collect, discards=Discards())
    )


def title(ranks: int, settings: Settings) -> str:
    """Return 3-synchronous, BSP."""
    gradients = gradients_of(ranks, settings)
    return "BSP" if gradients == layout_of(ranks, settings).workers else f"{gradients}-synchronous"


TRAITS: Final = replace(WITH_SERVERS, words={"collect": (ALL,)}, title=title, splits_layers=False)
