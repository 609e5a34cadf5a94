"""Evaluation through a pipeline."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.data.parts.sharding import bounds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hpcdl.fabric.comm import Comm
    from hpcdl.training.parts.neighbours import Stage
    from hpcdl.training.parts.session import Session


async def test(
    comm: Comm, session: Session, replicas: Comm, before: Stage | None, after: Stage | None, most: int
) -> NDArray[np.float64]:
    """Return the summed loss and the number of correct answers of this pipeline's share of the test set, (2,).

    They are zeros on all ranks but the last of each pipeline. At most ``most`` images pass at a time.
    """
    replica, split = session.replica, session.dataset.test
    begin, end = bounds(len(split), replicas.size)[replicas.rank :][:2]
    parts = [np.arange(first, min(first + most, end)) for first in range(begin, end, most)]
    sums = np.zeros(2)
    for number, mine in enumerate(parts):
        if before is None:
            images, _ = await comm.compute("evaluation", partial(split.batch, mine, replica.dtype))
            x = replica.backend.asarray(images)
        else:
            before.expect(number, len(mine))
            x = await before.received(number)
        y = await comm.compute("evaluation", partial(replica.predict, x))
        if after is None:
            labels = replica.backend.asarray(split.labels[mine])
            work = partial(replica.loss, y, labels, 1.0)
            loss, correct, _ = await comm.compute("evaluation", work)
            sums += (loss, correct)
        else:
            await after.sent(number - 1)
            await after.send(number, y)
    if after is not None:
        await after.finish()
    replica.release_predictions()
    return sums
