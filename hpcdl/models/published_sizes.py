"""Networks of published dimensions, as sizes of their layers (``published_sizes.toml``).

Replays and predictions know their parameters, FLOP and activations; trainings refuse them. A sample is a sequence
of ``shape`` tokens, or an image. A block is two rows of one group: buckets are as fine as those of libraries.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from hpcdl.aggregation.parts.cost import evaluate
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import SizedLayer
from hpcdl.registry import Offer


def _model(name: str, table: dict[str, Any]) -> Offer:
    """Return the network of a table of the file, as a function of shape and classes."""
    blocks = [f"block{number}" for number in range(1, 1 + table.get("blocks", 0))]
    parts = [("", table["before"]), *((block, table["block"]) for block in blocks), ("", table.get("after", []))]

    def model(shape: Shape = tuple(table["shape"]), classes: int = table["classes"]) -> list[SizedLayer]:
        layers, numbers = [], {"shape": shape, "classes": classes}
        for group, rows in parts:
            for row, *formulas in rows:
                parameters, activations, multiply_adds = (int(evaluate(text, numbers)) for text in formulas)
                own = f"{group}_{row}" if group else row
                flop = 2 * multiply_adds, 4 * multiply_adds
                layers.append(SizedLayer(own, parameters, activations, *flop, group=group or None))
        return layers

    model.__name__, model.__doc__ = name, table["about"]
    return model


OFFERS: Final = {
    name: _model(name, table)
    for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}
