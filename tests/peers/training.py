"""Compare data-parallel training on one machine with PyTorch's DistributedDataParallel over gloo, in turns.

Run by ``make peers-training``; prints a Markdown table. Two ranks, one thread each, fixed batches. Both programs also
train two independent replicas, without communication. The share is (throughput of data-parallel training) / (throughput
of independent replicas) in the same round. A turn is several steps, from the start of the first rank to the end of the
last rank. Before the two turns of a program, whose order changes every round, one turn is not counted.
"""

import argparse
import os
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from turns import ROOT, ensembles, mpich, open_mpi, parser, processor, quartiles, serve

sys.path[:0] = [str(ROOT / "tests/models"), str(ROOT / "tests")]

BATCHES = {"lenet5": 64, "nin_cifar": 32, "resnet20": 64, "alexnet": 16, "googlenet": 8, "resnet50": 8}
"""Images of a rank's step."""
STEPS = {"lenet5": 40, "nin_cifar": 3, "resnet20": 5}
"""Of a turn; 2 for the others."""
RANKS = 2


def play_hpcdl(name, aggregation, bucket_bytes):
    from contract.networks import layers
    from contract.sessions import training_session
    from steps import DECAY, MOMENTUM, NETWORKS, RATE, draw

    from hpcdl import registry
    from hpcdl.fabric.mpi.comm import Mpi
    from hpcdl.nn.backend import backend
    from hpcdl.nn.replica import Replica
    from hpcdl.optim.sgd import SGD
    from hpcdl.trace.recorder import Recorder
    from hpcdl.training.parts.journal import Journal
    from hpcdl.training.synchronous import synchronous

    shape, classes, _ = NETWORKS[name]
    kernels = backend("numba")
    if kernels.prepare is not None:
        kernels.prepare("float32")
    mpi = Mpi()
    replica = Replica(layers(name, shape, classes), shape, backend=kernels, seed=1, allocate=mpi.memory.allocate)
    batch = draw(shape, classes, BATCHES[name])

    def answer(together, steps):
        recorder = Recorder(events=False)
        session = training_session(
            replica=replica,
            optimizer=SGD(momentum=MOMENTUM, weight_decay=DECAY),
            aggregate=registry.find("aggregation", aggregation if together else "none"),
            dataset=registry.find("datasets", "synthetic")(),
            journal=Journal(recorder, mpi.counters),
            learning_rate=lambda _step: RATE,
            global_batch=RANKS * BATCHES[name],
            steps=steps,
            seed=1,
        )
        session.inputs.load = lambda *_: batch
        session.evaluation.due = lambda _steps: False
        mpi.run(synchronous(mpi.comm, session, bucket_bytes=bucket_bytes if together else None))
        return recorder.steps[0].begin, recorder.steps[-1].end

    serve(mpi.comm.rank, answer)


def play_pytorch(name, rank, meeting):
    import torch
    import torch_zoo
    from steps import prepared
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    network, images, labels, optimizer = prepared(name, BATCHES[name], "channels_last")
    parallel = DistributedDataParallel(network, gradient_as_bucket_view=True)

    def answer(together, steps):
        begin = time.perf_counter_ns()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with nullcontext() if together else parallel.no_sync():
                torch_zoo.outcome(parallel, images, labels)[1].backward()
            optimizer.step()
        return begin, time.perf_counter_ns()

    serve(rank, answer)


def compare(name, rounds, aggregation, bucket_bytes):
    me = str(Path(__file__).resolve())
    steps = STEPS.get(name, 2)
    ours = ["--hpcdl", name, "--aggregation", aggregation, "--bucket-bytes", str(bucket_bytes)]
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, me, "--pytorch", name]
        pytorch = [[*program, str(rank), f"{folder}/meeting"] for rank in range(RANKS)]
        programs = {
            "hpcdl, MPICH": (RANKS, [mpich(RANKS, me, *ours)]),
            "hpcdl, Open MPI": (RANKS, [open_mpi(RANKS, me, *ours)]),
            "DDP, gloo": (RANKS, pytorch),
        }
        with ensembles(programs) as found:
            rates = {(who, together): [] for who in found for together in (True, False)}
            for number in range(rounds + 1):
                for who, ensemble in found.items():
                    # who has waited has lost its caches, and pages to reclaim
                    ensemble.play(together=True, steps=1)
                    for together in (True, False) if number % 2 else (False, True):
                        spans = ensemble.play(together=together, steps=steps)
                        took = (max(end for _, end in spans) - min(begin for begin, _ in spans)) * 1e-9
                        if number:  # the first round warms up
                            rates[who, together].append(RANKS * BATCHES[name] * steps / took)
    for who in programs:
        pairs = zip(rates[who, True], rates[who, False], strict=True)
        low, middle, high = quartiles([one / other for one, other in pairs])
        images = quartiles(rates[who, True])[1]
        share = f"{middle:.3f} | {low:.3f} to {high:.3f}"
        print(f"| {name} | {BATCHES[name]} | {who} | {images:.1f} | {share} |", flush=True)


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--models", default=",".join(BATCHES))
    arguments.add_argument("--aggregation", default="halving_doubling")
    arguments.add_argument("--bucket-bytes", type=int, default=1 << 22)
    arguments.add_argument("--hpcdl", help=argparse.SUPPRESS)
    arguments.add_argument("--pytorch", nargs=3, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.hpcdl:
        play_hpcdl(options.hpcdl, options.aggregation, options.bucket_bytes)
        return
    if options.pytorch:
        name, rank, meeting = options.pytorch
        play_pytorch(name, int(rank), meeting)
        return
    print(f"Two ranks of one thread on {processor()}, {os.cpu_count()} cores, {options.rounds} rounds\n")
    print("| model | batch of a rank | program | images/s | share of independent replicas | quartiles |")
    print("|---|---|---|---|---|---|")
    for name in options.models.split(","):
        compare(name, options.rounds, options.aggregation, options.bucket_bytes)


if __name__ == "__main__":
    main()
