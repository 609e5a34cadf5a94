from __future__ import annotations

from dataclasses import replace
from typing import Final

from hpcdl.fabric.comm import Comm
from hpcdl.training.parts.servers.rules import Rules
from hpcdl.training.parts.servers.strategy import WITH_SERVERS, check_servers, train_with_servers
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings


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
    (:mod:`hpcdl.training.parts.servers.rules`).

    The parameters are divided among ``servers`` shards, each with its own optimizer. The first ranks are workers
    and servers; with ``dedicated`` the last ranks are servers only. For rates, shares, failures, meshes and
    messages see :mod:`hpcdl.training.parts.servers`.
    """
    rules = Rules(servers=servers, dedicated=dedicated, delay_compensation=delay_compensation, strength=strength)
    await train_with_servers(comm, session, rules)


def check(ranks: int, settings: Settings) -> None:
    """Raise ValueError for invalid settings."""
    check_servers(ranks, settings)
    if settings["delay_compensation"] == "none" and settings["strength"] is not None:
        raise ValueError("strength: needs delay_compensation")


NAMES: Final = {"none": "Downpour", "constant": "DC-ASGD", "adaptive": "DC-ASGD-a"}
"""Names of the variants of delay compensation in the literature."""

TRAITS: Final = replace(
    WITH_SERVERS,
    words={"delay_compensation": NAMES},
    check=check,
    title=lambda _ranks, settings: NAMES[settings["delay_compensation"]],
    gradients_in_flight=lambda _settings: 1,
)
