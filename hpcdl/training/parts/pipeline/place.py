"""Place of a rank among pipelines and stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Comm


@dataclass(frozen=True)
class Place:
    """A rank's two groups."""

    pipe: Comm
    """Ranks of the pipeline, in the order of its stages."""
    replicas: Comm
    """Ranks with the same stage, one of each pipeline."""


async def placed(comm: Comm, stages: int) -> Place:
    """Return this rank's place; a pipeline is ``stages`` consecutive ranks. Every rank calls."""
    pipeline, stage = divmod(comm.rank, stages)
    return Place(await comm.split(pipeline, stage), await comm.split(stage, pipeline))
