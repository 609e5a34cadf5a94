"""``hpcdl layers``: a network as a table of its layers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.output import output_path
from hpcdl.commands.parts.parser import Arguments, Command, whole_number
from hpcdl.exit_codes import OK, UsageError

if TYPE_CHECKING:
    from hpcdl.nn.layer import SizedLayer

SHOWN: Final = 10
"""Layers that are printed, those with the most parameters."""


def arguments(parser: Arguments) -> None:
    parser.option(
        "source MODEL|RUN|TRACE",
        "a network of `hpcdl list models`, a run (its first training), a PyTorch profiler's trace (.json, "
        ".json.gz), a Chakra trace (.et), or a table (.csv)",
    )
    parser.option("-o TABLE.csv", "write all layers", dest="file", type=Path)
    parser.option("--shape HxWxC", "of an image, or the tokens of a sequence", type=_shape)
    parser.option("--batch N", "samples of a forward pass, if a Chakra trace states none", type=whole_number)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(whole_number(word) for word in text.split("x"))


def execute(options: argparse.Namespace) -> int:
    from hpcdl.cases.keys.key import FAULTS
    from hpcdl.models.layers import table_text
    from hpcdl.prediction.layer_tables import REST, table_of

    try:
        layers = table_of(options.source, options.shape, options.batch)
    except (*FAULTS, ImportError) as error:
        raise UsageError(f"{options.source}: {str(error).removeprefix(f'{options.source}: ')}") from None
    if options.file:
        with output_path("-o", options.file) as path:
            path.write_text(table_text(layers), encoding="utf-8", newline="")
    print(f"{'':24}    |W| MB  output MB  GFLOP a sample  FLOP per byte of |W|  ms a sample")
    for layer in sorted(layers, key=lambda layer: -layer.parameters)[:SHOWN]:
        print(_line(layer.name, [layer]))
    print(_line(f"all {len(layers)} layers", layers))
    for name in ("parameters", "activations"):
        if not any(getattr(layer, name) for layer in layers):
            print(f"warning: the source states no {name}: fill in the column")
    if unassigned := sum(layer.parameters for layer in layers if layer.name == REST):
        print(f"warning: {unassigned} parameters are in no layer: row {REST!r}")
    return OK


def _line(name: str, layers: Sequence[SizedLayer]) -> str:
    """Return the sizes of some layers together: |W|; outputs, FLOP and time of a sample."""
    weights, outputs = (
        4e-6 * sum(getattr(each, name) for each in layers) for name in ("parameters", "activations")
    )
    flop = sum((each.forward_flop or 0) + (each.backward_flop or 0) for each in layers)
    seconds = sum(sum(each.seconds) for each in layers)
    values = weights, outputs, flop / 1e9, weights and flop / weights / 1e6, seconds * 1e3
    cells = zip(values, (9, 9, 14, 20, 11), strict=True)
    return "  ".join(
        (f"{name:24}", *(f"{cell:{width}.3f}" if cell else f"{'-':>{width}}" for cell, width in cells))
    )


COMMAND: Final = Command(
    45,
    "a network as a table of layers",
    "Print parameters |W|, outputs and FLOP of a network's largest layers; write all layers as a table "
    "for replays and predictions. `hpcdl help networks` shows how to record your own network in PyTorch.",
    "hpcdl layers gpt2_xl --shape 512 -o gpt2-512.csv",
)
