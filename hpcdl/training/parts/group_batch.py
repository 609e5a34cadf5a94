"""Batch of a model group: each rank's share of the images, and what its part of the first layer takes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.data.parts.sharding import bounds
from hpcdl.nn.split.layout import extents, intersection, within

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hpcdl.data.parts.dataset import Split
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.split.layout import Layout, Range


def shares(images: int, ranks: int) -> tuple[Range, ...]:
    """Return each rank's share of a group's batch; sizes differ by at most one image."""
    ends = bounds(images, ranks)
    return tuple(pairwise(ends))


def read(
    split: Split,
    indices: NDArray[np.int64],
    takes: Layout,
    rank: int,
    ranks: int,
    dtype: str,
    key: tuple[int, ...] | None = None,
) -> tuple[Array, NDArray[np.int64]]:
    """Return what ``rank`` takes of the images at ``indices``, the group's batch, and the labels of its share."""
    own = slice(*shares(len(indices), ranks)[rank])
    if takes.by_images:
        return split.batch(indices[own], dtype, key)
    images, labels = split.batch(indices, dtype, key)
    if takes.replicated:
        return images, labels[own]
    box = takes.boxes(((0, len(images)),))[rank]
    origin = tuple((0, extent) for extent in images.shape)
    inside = intersection(box, origin)
    part = np.full(extents(box), takes.fill, images.dtype)
    part[within(inside, box)] = images[within(inside, origin)]
    return part, labels[own]
