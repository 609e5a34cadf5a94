"""Compare training steps with PyTorch: equal networks, weights, batches and threads, in turns.

Run by ``make peers``; prints a Markdown table. A step is forward, loss, backward and SGD with momentum and weight
decay (PyTorch's fused one). PyTorch runs in both memory layouts, with ``--compile`` also compiled, and the fastest counts.
Each program has its own process for each number of threads, and sleeps while another one has its turn. A turn is one
step that does not count, then as many steps as fit into a fifth of a second. Times are medians over rounds. The ratio
is PyTorch's time / hpcdl's time: median and quartiles over rounds. A gain is (time with one thread) / (time with several
threads). Memory is the largest resident set after five steps minus the resident set after the imports.
"""

import argparse
import math
import os
import statistics
import sys
import threading
import time
from itertools import product
from pathlib import Path

from turns import ROOT, THREADS, ensembles, parser, processor, quartiles, serve

sys.path[:0] = [str(ROOT / "tests/models"), str(ROOT / "tests")]

NETWORKS = {
    "lenet5": ((28, 28, 1), 10, 24),
    "cifar_quick": ((32, 32, 3), 10, 36),
    "resnet20": ((32, 32, 3), 10, 24),
    "resnet56": ((32, 32, 3), 10, 12),
    "nin_cifar": ((32, 32, 3), 10, 10),
    "alexnet": ((227, 227, 3), 1000, 9),
    "googlenet": ((224, 224, 3), 1000, 5),
    "vgg16": ((224, 224, 3), 1000, 4),
    "resnet50": ((224, 224, 3), 1000, 4),
}
"""Image shape, classes, images a step: few, as a rank of many has, so that threads cannot all have images."""

LAYOUTS = ("channels_last", "contiguous_format")
TURN = 0.2
"""Seconds of a turn, about; a step that takes longer is a turn."""

RATE, MOMENTUM, DECAY = 1e-4, 0.9, 2e-4


def draw(shape, classes, batch):
    import numpy as np

    random = np.random.default_rng(0)
    return random.standard_normal((batch, *shape)).astype(np.float32), random.integers(0, classes, batch)


def hpcdls(name, kind, batch):
    """Return a function that executes a training step with hpcdl."""
    from contract import networks

    from hpcdl.nn.backend import backend
    from hpcdl.nn.replica import Replica
    from hpcdl.optim.parts.protocol import Multipliers
    from hpcdl.optim.sgd import SGD

    shape, classes, _ = NETWORKS[name]
    replica = Replica(networks.layers(name, shape, classes), shape, backend=backend(kind), seed=1)
    images, labels = draw(shape, classes, batch)
    optimizer = SGD(momentum=MOMENTUM, weight_decay=DECAY)
    optimizer.multipliers = Multipliers.of(replica.tensors)

    def step():
        networks.backward(replica, networks.forward(replica, images), labels, 1 / batch)
        optimizer.update(replica.parameters, replica.gradients, RATE)

    return step


def groups(network):
    """Return parameter groups; biases and batch normalisation have no weight decay."""
    return [
        {"params": [one for one in network.parameters() if one.ndim > 1]},
        {"params": [one for one in network.parameters() if one.ndim == 1], "weight_decay": 0.0},
    ]


def prepared(name, batch, layout):
    """Return PyTorch's network, a batch in the memory ``layout``, and the optimizer."""
    import torch
    import torch_zoo

    shape, classes, _ = NETWORKS[name]
    form = getattr(torch, layout)
    network = getattr(torch_zoo, name)(shape, classes).train().to(memory_format=form)
    images, labels = map(torch.from_numpy, draw(shape, classes, batch))
    images = images.permute(0, 3, 1, 2).contiguous(memory_format=form)
    optimizer = torch.optim.SGD(groups(network), RATE, momentum=MOMENTUM, weight_decay=DECAY, fused=True)
    return network, images, labels, optimizer


def pytorchs(name, kind, batch):
    """Return a function that executes a training step with PyTorch; ReLUs are in place, as usual."""
    import torch
    import torch_zoo

    layout, _, compiled = kind.partition(" ")
    network, images, labels, optimizer = prepared(name, batch, layout)
    for module in network.modules():
        if isinstance(module, torch.nn.ReLU):
            module.inplace = True
    if compiled:
        network = torch.compile(network)

    def step():
        optimizer.zero_grad(set_to_none=True)
        torch_zoo.outcome(network, images, labels)[1].backward()
        optimizer.step()

    return step


def resident(key):
    """Return VmRSS or VmHWM of this process, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1000


def contend(kind, name, batch, count):
    """A player: ``count`` threads, prepared as a rank of hpcdl, or as PyTorch, has them."""
    if kind.startswith(LAYOUTS):
        import torch

        torch.set_num_threads(count)
        before = resident("VmRSS")
        play(pytorchs(name, kind, batch), before)
        return
    import threadpoolctl

    from hpcdl.nn.backend import backend, threads

    kernels = backend(kind)
    with threadpoolctl.threadpool_limits(1 if kernels.divides_products else count, "blas"), threads(count):
        if kernels.prepare is not None:
            kernels.prepare("float32")
        before = resident("VmRSS")
        play(hpcdls(name, kind, batch), before)


def play(step, before):
    """Answer with the seconds of a step of each turn, the memory, and the part of the work of other threads."""
    for _ in range(2):
        step()
    begin = time.perf_counter()
    step()
    steps = max(1, math.ceil(TURN / (time.perf_counter() - begin)))

    def turn():
        step()
        begin, process, own = time.perf_counter(), time.process_time(), time.thread_time()
        for _ in range(steps):
            step()
        took, process, own = time.perf_counter() - begin, time.process_time() - process, time.thread_time() - own
        return {"seconds": took / steps, "megabytes": resident("VmHWM") - before, "others": 1 - own / process}

    # a rank's program runs on the first thread, and so does a player's
    assert threading.current_thread() is threading.main_thread()
    serve(0, turn)


def players(name, batch, kinds, counts):
    """Programs of :func:`ensembles`: each contender with each number of threads."""
    command = [sys.executable, str(Path(__file__).resolve()), "--play"]
    found = {}
    for kind, count in product(kinds, counts):
        threads = ["env", *(f"{key}={count}" for key in THREADS)]
        found[kind, count] = 1, [[*threads, *command, kind, name, str(batch), str(count)]]
    return found


def compare(name, batch, kinds, counts, rounds):
    """Return seconds of each round of each contender, and its memory."""
    with ensembles(players(name, batch, kinds, counts)) as found:
        turns = {who: [ensemble.play()[0]] for who, ensemble in found.items()}
        for number in range(rounds):
            for who in list(found)[:: -1 if number % 2 else 1]:
                turns[who].append(found[who].play()[0])
    seconds = {who: [turn["seconds"] for turn in each[1:]] for who, each in turns.items()}
    return seconds, {who: each[0]["megabytes"] for who, each in turns.items()}


def rows(name, batch, backend, peers, counts, rounds):
    """Print a row for each number of threads, and return their ratios, and gains of hpcdl and PyTorch."""
    seconds, memory = compare(name, batch, (backend, *peers), counts, rounds)
    medians = {who: statistics.median(values) for who, values in seconds.items()}
    alone = {}
    for count in counts:
        best = min(peers, key=lambda kind: medians[kind, count])
        ours, theirs = medians[backend, count], medians[best, count]
        alone.setdefault("hpcdl", ours)
        alone.setdefault("PyTorch", theirs)
        pairs = zip(seconds[backend, count], seconds[best, count], strict=True)
        low, ratio, high = quartiles([its / mine for mine, its in pairs])
        mine, its = memory[backend, count], min(memory[kind, count] for kind in peers)
        gains = alone["hpcdl"] / ours, alone["PyTorch"] / theirs
        cells = f"{ours * 1e3:.1f} | {theirs * 1e3:.1f} | {ratio:.2f} | {low:.2f} to {high:.2f}"
        print(f"| {name} | {batch} | {count} | {cells} | {mine:.0f} | {its:.0f} |", flush=True)
        yield count, (ratio, *gains)


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--models", default=",".join(NETWORKS), help="NAME or NAME:BATCH, with commas")
    arguments.add_argument("--backend", default="numba")
    arguments.add_argument("--threads", type=int, default=1, help="also so many threads of each contender")
    arguments.add_argument("--compile", action="store_true", help="also torch.compile, which needs a C++ compiler")
    arguments.add_argument("--play", nargs=4, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.play:
        kind, name, batch, count = options.play
        contend(kind, name, int(batch), int(count))
        return
    import torch

    counts = sorted({1, options.threads})
    place = f"{processor()}, {os.cpu_count()} cores, {options.rounds} rounds"
    print(f"hpcdl ({options.backend}) compared with PyTorch {torch.__version__} on {place}\n")
    cells = "hpcdl ms | PyTorch ms | PyTorch / hpcdl | quartiles | hpcdl MB | PyTorch MB"
    print(f"| model | batch | threads | {cells} |\n{'|---' * 9}|")
    found = {count: [] for count in counts}
    peers = [*LAYOUTS, *(f"{layout} compiled" for layout in LAYOUTS if options.compile)]
    for one in options.models.split(","):
        name, _, batch = one.partition(":")
        given = int(batch or NETWORKS[name][2])
        for count, row in rows(name, given, options.backend, peers, counts, options.rounds):
            found[count].append(row)
    print("", *sentences(found), sep="\n")


def sentences(found):
    """Return the answers; ``found``: of each number of threads rows of ratio and both gains of the threads."""
    lines = []
    for count, each in found.items():
        ratios, *gains = zip(*each, strict=True)
        ours, theirs = map(statistics.geometric_mean, gains)
        threads = {1: "one thread", 2: "two threads"}.get(count, f"{count} threads")
        if count > 1:
            faster = f"{ours:.2f} times as fast as with one, a step of PyTorch {theirs:.2f}."
            lines.append(f"With {threads} a step of hpcdl is {faster}")
        times = f"{statistics.geometric_mean(ratios):.2f} times as fast as PyTorch's (at least {min(ratios):.2f} times)"
        lines.append(f"On {threads} a training step is {times}.")
    return lines


if __name__ == "__main__":
    main()
