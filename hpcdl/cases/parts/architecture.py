"""Datasets and models that a case names, as objects."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.cases.parts.choice import Choice
    from hpcdl.data.parts.dataset import Dataset
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer


@cache
def opened(dataset: Choice) -> Dataset:
    """Return a dataset, each once per process: cases share it."""
    settings = {key: tuple(one) if isinstance(one, list) else one for key, one in dataset.settings.items()}
    return dataset.find()(**settings)  # type: ignore[no-any-return]


def architecture(model: Choice, dataset: Choice | None) -> tuple[Shape, Sequence[Layer]]:
    """Return the shape of images and the layers; without a dataset those for which the model is published.

    Raises ValueError for a model that is not published for one size of images.
    """
    if dataset is not None:
        data = opened(dataset)
        return data.shape, model.make(data.shape, data.classes)
    shape, classes = (one.default for one in list(inspect.signature(model.find()).parameters.values())[:2])
    if shape is inspect.Parameter.empty or classes is inspect.Parameter.empty:
        raise ValueError(f"{model.name!r} is made for no size of images; name a dataset")
    return shape, model.make(shape, classes)


def check_layers(layers: Sequence[Layer], shape: Shape) -> Shape:
    """Return the shape of the outputs for images of ``shape``. Raises ValueError for layers that do not fit."""
    for layer in layers:
        layer.declare(shape)
        shape = layer.output(shape)
    return shape
