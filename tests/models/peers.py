"""Compare training steps with PyTorch: equal networks, weights, batches and threads, in turns.

Run by ``make peers``; prints a Markdown table. A step is forward, loss, backward and SGD with momentum and weight
decay (PyTorch's fused one). PyTorch runs in both memory layouts, with ``--compile`` also compiled, and the fastest counts.
Times are medians over
rounds in which every contender makes a step; a ratio is PyTorch's time by ours, with the lower and upper quartile
of the rounds' ratios. Memory is the largest resident set of a process that makes three steps, less what it was
after the imports.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

NETWORKS = {
    "lenet5": ((28, 28, 1), 10, 64),
    "nin_cifar": ((32, 32, 3), 10, 32),
    "resnet20": ((32, 32, 3), 10, 64),
    "alexnet": ((227, 227, 3), 1000, 16),
    "googlenet": ((224, 224, 3), 1000, 16),
    "vgg11": ((224, 224, 3), 1000, 8),
    "resnet50": ((224, 224, 3), 1000, 8),
}
"""Image shape, classes, images a step."""

LAYOUTS = ("channels_last", "contiguous_format")

RATE, MOMENTUM, DECAY = 1e-4, 0.9, 2e-4


def draw(shape, classes, batch):
    import numpy as np

    random = np.random.default_rng(0)
    return random.standard_normal((batch, *shape)).astype(np.float32), random.integers(0, classes, batch)


def hpcdls(name, backend):
    """Return a function that executes a training step with hpcdl."""
    from hpcdl import registry
    from hpcdl.nn.backend import backend as kernels
    from hpcdl.nn.replica import Replica
    from hpcdl.optim.parts.per_tensor import Multipliers
    from hpcdl.optim.sgd import SGD

    shape, classes, batch = NETWORKS[name]
    model = registry.find("models", name)
    dropout = {key: 0.0 for key in registry.settings_of(model) if "dropout" in key}
    replica = Replica(model(shape, classes, **dropout), shape, backend=kernels(backend), seed=1)
    images, labels = draw(shape, classes, batch)
    optimizer = SGD(momentum=MOMENTUM, weight_decay=DECAY)
    optimizer.multipliers = Multipliers.of(replica.tensors)

    def step():
        x = images
        for stage in replica.stages:
            x = stage.forward(x)
        _, _, x = replica.loss(x, labels, 1 / batch)
        for head in replica.heads:
            head.aim(labels, 1 / batch)
        for stage in reversed(replica.stages):
            x = stage.backward(x)
        optimizer.update(replica.parameters, replica.gradients, RATE)

    return step


def groups(network):
    """Return parameter groups; biases and batch normalisation have no weight decay."""
    return [
        {"params": [one for one in network.parameters() if one.ndim > 1]},
        {"params": [one for one in network.parameters() if one.ndim == 1], "weight_decay": 0.0},
    ]


def pytorchs(name, kind):
    """Return a function that executes a training step with PyTorch; ReLUs are in place, as usual."""
    import torch
    import torch_zoo

    torch.set_num_threads(int(os.environ[THREADS[0]]))
    layout, _, compiled = kind.partition(" ")
    shape, classes, batch = NETWORKS[name]
    network = getattr(torch_zoo, name)(shape, classes).train()
    for module in network.modules():
        if isinstance(module, torch.nn.ReLU):
            module.inplace = True
    form = getattr(torch, layout)
    network = network.to(memory_format=form)
    if compiled:
        network = torch.compile(network)
    images, labels = draw(shape, classes, batch)
    images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(memory_format=form)
    labels = torch.from_numpy(labels)
    optimizer = torch.optim.SGD(groups(network), RATE, momentum=MOMENTUM, weight_decay=DECAY, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        outputs = network(images)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        losses = [torch.nn.functional.cross_entropy(logits, labels) for logits in outputs]
        (losses[0] + 0.3 * sum(losses[1:])).backward()
        optimizer.step()

    return step


def contender(kind, name):
    return pytorchs(name, kind) if kind.startswith(LAYOUTS) else hpcdls(name, kind)


def resident(key):
    """Return VmRSS or VmHWM of this process, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1000


def memory(kind, name):
    """Return the peak memory of three steps in a new process, in MB."""
    command = [sys.executable, __file__, "--threads", os.environ[THREADS[0]], "--memory-of", kind, name]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_memory(kind, name):
    if kind.startswith(LAYOUTS):
        import torch_zoo  # noqa: F401
    else:
        from hpcdl.nn.backend import backend

        if (prepare := backend(kind).prepare) is not None:
            prepare("float32")
    before = resident("VmRSS")
    step = contender(kind, name)
    for _ in range(3):
        step()
    print(json.dumps(resident("VmHWM") - before))


def compare(name, backend, rounds, peers):
    steps = {kind: contender(kind, name) for kind in (backend, *peers)}
    for step in steps.values():
        step()
        step()
    times = {kind: [] for kind in steps}
    for _ in range(rounds):
        for kind, step in steps.items():
            begin = time.perf_counter()
            step()
            times[kind].append(time.perf_counter() - begin)
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    best = min(peers, key=medians.get)
    ratios = sorted(theirs / ours for ours, theirs in zip(times[backend], times[best], strict=True))
    return medians[backend], medians[best], best, ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(NETWORKS))
    parser.add_argument("--backend", default="numba")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", default="1", help="of each contender (default: 1)")
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which needs a C++ compiler")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if any(os.environ.get(key) != options.threads for key in THREADS):
        os.execve(
            sys.executable, [sys.executable, *sys.argv], os.environ | dict.fromkeys(THREADS, options.threads)
        )
    if options.memory_of:
        measure_memory(*options.memory_of)
        return
    import torch

    chip = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    print(
        f"hpcdl {options.backend} beside PyTorch {torch.__version__} on {chip}, {options.threads} threads, "
        f"{options.rounds} rounds\n"
    )
    print(
        "| model | batch | hpcdl ms | PyTorch ms | its layout | ratio | quartiles | peak MB | PyTorch's | of it |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    logs, peers = [], [*LAYOUTS, *(f"{layout} compiled" for layout in LAYOUTS if options.compile)]
    for name in options.models.split(","):
        ours, theirs, layout, ratios = compare(name, options.backend, options.rounds, peers)
        ratio = theirs / ours
        logs.append(ratio)
        quarter = len(ratios) // 4
        mine, its = memory(options.backend, name), min(memory(kind, name) for kind in peers)
        print(
            f"| {name} | {NETWORKS[name][2]} | {ours * 1e3:.1f} | {theirs * 1e3:.1f} | {layout} | {ratio:.2f} "
            f"| {ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f} | {mine:.0f} | {its:.0f} | {mine / its:.2f} |",
            flush=True,
        )
    print(f"\nGeometric mean of the ratios: {statistics.geometric_mean(logs):.2f}; least: {min(logs):.2f}")


if __name__ == "__main__":
    main()
