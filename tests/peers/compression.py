"""Compare encoding and decoding of every compressor on one core with copying and with PyTorch's CPU tensors, in turns.

Run by ``make peers-compression``; prints a Markdown table. ``of copy`` is (time to copy the gradient) / (time to encode
or decode it) in the same round: the share of the copy bandwidth. ``by torch`` is PyTorch's time / hpcdl's time. The order
of turns is random in each round; quartiles are over rounds. If a compressor exchanges several vectors, the time contains
all of them. Positions of selected entries are encoded with ``--code``.
"""

import math
import os
import random
import statistics
import sys
import time

import numpy as np
from torch_compressors import peer
from turns import THREADS, parser, processor, ratio

from hpcdl import registry
from hpcdl.commands.parts.contracts import layout
from hpcdl.compression.parts.selection import SparseMessages

COMPRESSORS = [name for name in registry.names("compression") if name != "none"]
ELEMENTS = 25_000_000
LAYER = (512, 4608)
"""Shape of a convolution of ResNet-50 with 512 filters of 3 x 3 x 512."""


def layers(elements):
    """Shapes of tensors with so many elements: one layer many times, and a vector."""
    each = math.prod(LAYER)
    return [LAYER] * (elements // each) + [(elements % each,)] * (elements % each > 0)


class Contender:
    """A compressor's turns: each takes a copy of the gradient, which is not timed."""

    def __init__(self, name, shapes, gradient, code):
        described = layout(shapes)
        made = registry.find("compression", name)(described)
        self.name, self.span, self.step = name, slice(0, described.size), 0
        self.vector, self.into, self.gradient = np.empty_like(gradient), np.zeros_like(gradient), gradient
        self.bytes = 0
        self.turns = {}
        if hasattr(made, "rounds"):
            self.residual = np.zeros_like(gradient)
            self.turns["encode"] = lambda: self.sums(made)
        else:
            encoder = SparseMessages(described, made, code) if hasattr(made, "select") else made
            self.wire = np.zeros(encoder.bound(self.span), np.uint8)
            self.turns["encode"] = lambda: self.encode(encoder)
            self.turns["decode"] = lambda: encoder.decode(self.span, self.wire[: self.bytes], self.into)
        theirs = peer(name, shapes)
        if theirs is not None:
            self.turns["torch"] = lambda: theirs(self.vector)
        for turn in self.turns:  # compiles
            self.play(turn)

    def sums(self, made):
        self.bytes = sum(one.nbytes for one in made.rounds(self.span, self.vector, self.residual, self.step))

    def encode(self, encoder):
        self.bytes = encoder.encode(self.span, self.vector, self.wire, self.step)

    def play(self, turn):
        """Return the seconds of a turn."""
        self.vector[:] = self.gradient
        self.step += 1
        begin = time.perf_counter()
        self.turns[turn]()
        return time.perf_counter() - begin


def copied(gradient, into):
    begin = time.perf_counter()
    np.copyto(into, gradient)
    return time.perf_counter() - begin


def measured(contender, rounds, shuffled):
    """Seconds by turn, one per round; copying is one of the turns."""
    times = {turn: [] for turn in ("copy", *contender.turns)}
    for _ in range(rounds):
        for turn in shuffled.sample(list(times), len(times)):
            took = copied(contender.gradient, contender.into) if turn == "copy" else contender.play(turn)
            times[turn].append(took)
    return times


def row(contender, times):
    """One line of the table; a part that a compressor has not is left empty."""
    cells = [contender.name, f"{contender.gradient.nbytes / max(1, contender.bytes):.1f}"]
    for turn, above, below in (
        ("encode", "copy", "encode"),
        ("decode", "copy", "decode"),
        ("torch", "torch", "encode"),
    ):
        if turn in times:
            cells += [f"{statistics.median(times[turn]) * 1e3:.1f}", ratio(times[above], times[below])]
        else:
            cells += [" | | "]
    return f"| {' | '.join(cells)} |"


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--elements", type=int, default=ELEMENTS)
    arguments.add_argument("--code", default="rice", choices=registry.names("codes"))
    arguments.add_argument("--only", default=",".join(COMPRESSORS), help="compressors, with commas")
    options = arguments.parse_args()
    if any(os.environ.get(one) != "1" for one in THREADS):  # libraries read them when they are imported
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **dict.fromkeys(THREADS, "1")})
    code = registry.find("codes", options.code)()
    shapes = layers(options.elements)
    generator = np.random.default_rng(0)
    gradient = generator.standard_normal(options.elements, dtype=np.float32)
    gradient *= np.float32(0.01)
    shuffled = random.Random(0)
    print(f"{options.elements:,} elements of float32 on {processor()}, one core, {options.rounds} rounds\n")
    print("| compressor | ratio | encode ms | of copy | quartiles | decode ms | of copy | quartiles ", end="")
    print(f"| torch ms | by torch | quartiles |\n{'|---' * 11}|")
    for name in options.only.split(","):
        contender = Contender(name, shapes, gradient, code)
        print(row(contender, measured(contender, options.rounds, shuffled)), flush=True)


if __name__ == "__main__":
    main()
