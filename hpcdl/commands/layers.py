"""``hpcdl layers``: a network as a table of its layers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.options import Arguments, Command, whole_number, write_output
from hpcdl.exit_codes import OK, UsageError

if TYPE_CHECKING:
    from hpcdl.nn.layer import SizedLayer
    from hpcdl.report.formats.document import Document

COUNTED: Final = ("parameters", "activations")
SHOWN: Final = 10
"""Layers that are printed, those with the most parameters."""


def arguments(parser: Arguments) -> None:
    traces = "a PyTorch profiler's trace (.json, .json.gz), a Chakra trace (.et), or a table (.csv)"
    effect = f"a network of `hpcdl list models`, a run (its first training), {traces}"
    parser.option("source MODEL|RUN|TRACE", effect)
    parser.option("-o TABLE.csv", "write all layers", dest="file", type=Path)
    parser.option(
        "--shape HxWxC",
        "of an image, or the tokens of a sequence",
        type=lambda text: tuple(map(whole_number, text.split("x"))),
    )
    parser.option("--batch N", "samples of a forward pass, if a Chakra trace states none", type=whole_number)


def execute(options: argparse.Namespace) -> int:
    from hpcdl.cases.keys.key import FAULTS
    from hpcdl.models.layers import REST, table_text
    from hpcdl.prediction.layer_tables import table_of
    from hpcdl.report.formats import writers

    try:
        layers = table_of(options.source, options.shape, options.batch)
    except FAULTS as error:
        raise UsageError(f"{options.source}: {str(error).removeprefix(f'{options.source}: ')}") from None
    if options.file:
        write_output("-o", options.file, table_text(layers))
    print(writers.plain([_page(options.source, layers)]))
    for name in COUNTED:
        if not any(getattr(layer, name) for layer in layers):
            print(f"warning: the source states no {name}: fill in the column")
    if unassigned := sum(layer.parameters for layer in layers if layer.name == REST):
        print(f"warning: {unassigned} parameters are in no layer: row {REST!r}")
    return OK


def _sizes(layers: Sequence[SizedLayer]) -> tuple[float, float, float, float, float]:
    """Return parameters and outputs (MB), GFLOP, FLOP per byte of parameters, and time (ms) of layers together."""
    weights, outputs = (4e-6 * sum(getattr(layer, name) for layer in layers) for name in COUNTED)
    flop = 1e-9 * sum((layer.forward_flop or 0) + (layer.backward_flop or 0) for layer in layers)
    time = 1e3 * sum(sum(layer.seconds) for layer in layers)
    return weights, outputs, flop, weights and 1e3 * flop / weights, time


def _page(source: str, layers: Sequence[SizedLayer]) -> Document:
    """Return the size of the network, and a table of its largest layers."""
    from hpcdl.report.formats.cells import digits, listed, plural
    from hpcdl.report.formats.document import Document, Section
    from hpcdl.report.formats.tables import Table
    from hpcdl.report.run.names import network_name

    weights, outputs, flop, intensity, time = _sizes(layers)
    parameters = f"{sum(layer.parameters for layer in layers):,}"
    size = f"{network_name(source)} has {plural(len(layers), 'layer')} and {parameters} parameters"
    needs = [f"{digits(flop)} GFLOP ({digits(intensity)} FLOP per byte of parameters)"] * bool(flop)
    needs += [f"{digits(outputs)} MB for outputs"] * bool(outputs) + [f"{digits(time)} ms"] * bool(time)
    answer = [f"{size} ({digits(weights)} MB in float32).", f"A sample takes {listed(needs)}."]
    header = ("layer", "parameters (MB)", "outputs (MB)", "GFLOP", "FLOP / byte", "ms")
    largest = sorted(layers, key=lambda layer: -layer.parameters)[:SHOWN]
    rows = [(layer.name, *(digits(value or None) for value in _sizes([layer]))) for layer in largest]
    order = f"The {len(rows)} of {len(layers)} layers with most parameters; outputs, GFLOP and ms per sample:"
    table = Table("", header, rows).without_empty()
    return Document(source, [Section("Layers", [*answer, order], tables=[table])])


COMMAND: Final = Command(
    45,
    "a network as a table of layers",
    "Print parameters, outputs and FLOP of a network and of its largest layers; write all layers as a table "
    "for replays and predictions. `hpcdl help models` shows how to record your own network in PyTorch.",
    "hpcdl layers gpt2_xl --shape 512 -o gpt2-512.csv",
)
