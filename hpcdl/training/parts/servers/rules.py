"""Rules by which servers apply gradients and let workers continue: all differences between the papers' servers."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import partition
from hpcdl.training.parts.servers.messages import Layout, Transfers
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.snapshots import Snapshots
from hpcdl.training.parts.split.model_group import holders

ALL: Final = "all"
"""Value of ``collect``: one gradient per worker."""
STRENGTHS: Final = {"constant": 0.04, "adaptive": 2.0}
"""lambda and lambda_0 of delay compensation, by variant, of the CIFAR-10 experiments of section 6."""
PASSES: Final = 5
"""Passes over a vector that one correction writes."""
_MEMORY: Final = 0.95
_EPSILON: Final = 1e-7


class Discards:
    """Gradients that the server of this rank has received and discarded."""

    def __init__(self) -> None:
        self.received = self.discarded = 0

    async def fields(self, comm: Comm) -> dict[str, float | None]:
        """Return the share of discarded gradients over all servers; all ranks call, once."""
        counts = np.array([float(self.received), float(self.discarded)])
        await (await comm.survivors()).native("allreduce", counts)
        return {"discarded_share": float(counts[1] / max(1, counts[0]))}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules of a strategy; the defaults are those of asynchronous SGD."""

    servers: int
    """Shards of the parameters, each with its own optimizer."""
    dedicated: bool
    """True if servers are the last ranks and do not train; else the first ranks are workers and servers."""
    collect: int | str = 1
    """Gradients of an update, or :data:`ALL`; fewer if fewer workers are running, or if all of them wait."""
    bound: int | None = None
    """Clocks of which a worker may miss updates, its own or others'; a clock is one mini-batch of one worker."""
    scale_rate: bool = False
    """True if a gradient's rate is divided by its staleness."""
    delay_compensation: str = "none"
    """Variant of :class:`hpcdl.training.parts.servers.rules.DelayCompensation`, and its lambda."""
    strength: float | None = None
    warm_start: int = 0
    """Mini-batches that the first worker trains on before the others begin."""
    discards: Discards | None = None
    """Count of discarded gradients: those of older versions are discarded, and a worker waits for the update with
    its gradient. None: all gradients are applied."""
    updates: bool = False
    """True if workers push updates, which are added to the parameters."""


class ServedRank:
    """One rank of a training with servers: its roles, its messages and its snapshots.

    Raises ValueError for a replica with loss scaling.
    """

    def __init__(self, comm: Comm, session: Session, rules: Rules) -> None:
        if session.replica.loss_scale != 1:
            raise ValueError("asynchronous training has no loss scaling; float32 and bfloat16 need none")
        self.comm = comm
        self.session = session
        self.ranks = holders(comm, session.group)
        """The ranks that hold the same parameters; :attr:`layout` counts them."""
        self.layout = layout = Layout.of(self.ranks.size, rules.servers, dedicated=rules.dedicated)
        self.weights = session.inputs.shares.among(layout.workers)
        """Weight of each worker's mini-batch in a global batch; 1 each if shares are equal."""
        self.parts = sum(self.weights)
        self.collect = layout.workers if rules.collect == ALL else int(rules.collect)
        most = -(-session.steps * self.parts // self.weights[0])
        self.rules = replace(rules, warm_start=min(rules.warm_start, most))
        if rules.discards is not None:
            session.watched.append(rules.discards)
        self.snapshots, self.transfers = Snapshots(session), Transfers(self.ranks, session, layout)


class DelayCompensation:
    """Delay compensation (Zheng et al. 2017, equation 10): g + lambda g g (w - w_backup), for one shard.

    The backups are the parameters last sent to each worker. lambda is ``strength``; if ``adaptive`` it is strength
    / sqrt(m + epsilon), m a moving mean of g g: DC-ASGD-a (equation 14).
    """

    def __init__(self, session: Session, workers: int, size: int, variant: str, strength: float | None) -> None:
        self._backups = partition(session.vector("backups", workers * size), workers)
        self._strength = STRENGTHS[variant] if strength is None else strength
        self._mean_square = session.vector("mean square", size) if variant == "adaptive" else None

    def remember(self, worker: int, parameters: Array) -> None:
        self._backups[worker][:] = parameters

    def correct(self, worker: int, gradient: Array, parameters: Array) -> None:
        """Change ``worker``'s gradient (n,) of a mean loss in place to an estimate at ``parameters`` (n,)."""
        change = parameters - self._backups[worker]
        change *= gradient
        change *= gradient
        change *= self._strength
        if self._mean_square is not None:
            self._mean_square *= _MEMORY
            self._mean_square += (1 - _MEMORY) * gradient * gradient
            change /= np.sqrt(self._mean_square + _EPSILON)
        gradient += change
