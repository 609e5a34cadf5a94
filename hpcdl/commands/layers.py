"""``hpcdl layers``: a network as a table of its layers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.output import output_path
from hpcdl.commands.parts.parser import Command, whole_number
from hpcdl.exit_codes import OK

if TYPE_CHECKING:
    from hpcdl.nn.layer import SizedLayer

SHOWN: Final = 10
"""Layers that are printed, those with the most parameters."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="MODEL|RUN|TRACE",
        help="a network of `hpcdl list models`, a run (its first training), a PyTorch profiler's trace (.json, "
        ".json.gz), a Chakra trace (.et), or a table (.csv)",
    )
    parser.add_argument("-o", dest="file", type=Path, metavar="TABLE.csv", help="write all layers")
    parser.add_argument("--shape", type=_shape, metavar="HxWxC", help="of an image, or the tokens of a sequence")


def _shape(text: str) -> tuple[int, ...]:
    return tuple(whole_number(word) for word in text.split("x"))


def execute(options: argparse.Namespace) -> int:
    import csv
    from dataclasses import asdict

    from hpcdl.cases.keys.key import FAULTS
    from hpcdl.models.layers import COLUMNS
    from hpcdl.prediction.layer_tables import table_of
    from hpcdl.suite import UsageError

    try:
        layers = table_of(options.source, options.shape)
    except (*FAULTS, ImportError) as error:
        raise UsageError(f"{options.source}: {str(error).removeprefix(f'{options.source}: ')}") from None
    if options.file:
        columns = [name for name in COLUMNS if any(getattr(layer, name) is not None for layer in layers)]
        with output_path("-o", options.file) as path, path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, columns, extrasaction="ignore")
            table.writeheader()
            table.writerows(map(asdict, layers))
    print(f"{'':24}    |W| MB  |D| MB  GFLOP a sample  FLOP per byte of |W|  ms a sample")
    for layer in sorted(layers, key=lambda layer: -layer.parameters)[:SHOWN]:
        print(_line(layer.name, [layer]))
    print(_line(f"all {len(layers)} layers", layers))
    for name in ("parameters", "activations"):
        if not any(getattr(layer, name) for layer in layers):
            print(f"warning: the source states no {name}: fill in the column")
    return OK


def _line(name: str, layers: Sequence[SizedLayer]) -> str:
    """Return the sizes of some layers together: |W|, |D| of a sample, FLOP and time of forward and backward."""
    weights, data = 4e-6 * sum(each.parameters for each in layers), 4e-6 * sum(each.activations for each in layers)
    flop = sum((each.forward_flop or 0) + (each.backward_flop or 0) for each in layers)
    seconds = sum(sum(each.seconds) for each in layers)
    cells = (weights, 9), (data, 7), (flop / 1e9, 14), (weights and flop / weights / 1e6, 20), (seconds * 1e3, 11)
    return "  ".join(
        (f"{name:24}", *(f"{cell:{width}.3f}" if cell else f"{'-':>{width}}" for cell, width in cells))
    )


COMMAND: Final = Command(
    45,
    "a network as a table of layers",
    "Print parameters |W|, activations |D| and FLOP of a network's largest layers; write all layers as a table "
    "for replays and predictions. `hpcdl help networks` shows how to record your own network in PyTorch.",
    arguments,
    execute,
    "hpcdl layers gpt2_xl --shape 512 -o gpt2-512.csv",
)
