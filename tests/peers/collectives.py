"""Compare allreduces on one machine, in turns: hpcdl's schemes, MPICH, Open MPI, PyTorch's gloo, and OSU's benchmark.

Run by ``make peers-collectives``; prints a Markdown table. An operation takes as long as its slowest rank. A turn is
several operations, each after a barrier; the median counts. The order of turns is random in each round. The ratio is
(time of the best library) / (time of the best scheme) in the same round; the best ones have the lowest median over
rounds. The last columns compare ``auto``, with the scheme that it chose, with the best of all schemes and of its MPI
library. The second row of a size has MPICH's ``native``, and ``osu_allreduce`` with MPICH if
``OSU=/path/to/osu-micro-benchmarks`` names its sources, which are built in a temporary folder. A turn of OSU is one
run; the maximum over ranks of the mean time counts. OSU has no barrier between its operations.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from turns import ROOT, ensembles, mpich, open_mpi, parser, processor, ratio, serve

SCHEMES = ("ring", "segmented_ring", "halving_doubling", "butterfly", "direct", "two_shot", "auto")
NATIVES = ("native", "native_reduce_scatter_allgather")
SIZES = tuple(4 << 2 * i for i in range(13))
"""4 B to 64 MiB."""
OSU = os.environ.get("OSU")


def repetitions(size):
    return max(7, min(200, (1 << 25) // max(1, size)))


def play_mpi():
    from hpcdl import registry
    from hpcdl.cases.parts.autotune import tune
    from hpcdl.launch.process import load, start

    load()
    start()  # as runs do, without locks for threads
    from hpcdl.fabric.mpi.comm import Mpi

    mpi = Mpi()
    comm = mpi.comm
    library = comm.library

    chosen = {}

    def answer(scheme, size):
        buffer = comm.memory.allocate(size // 4)
        if scheme == "auto":  # chosen once, as a collective case does
            if size not in chosen:
                chosen[size] = mpi.run(tune(comm, [size])).name(size)
            scheme = chosen[size]

        aggregate = registry.find("aggregation", scheme)

        async def operations(count):
            took = []
            for _ in range(count):
                await comm.native("barrier", buffer)
                begin = time.perf_counter_ns()
                await aggregate(comm, buffer)
                took.append(time.perf_counter_ns() - begin)
            return took

        mpi.run(operations(3))
        return scheme, mpi.run(operations(repetitions(size)))

    serve(library.rank, answer)


def play_gloo(rank, ranks, meeting):
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)

    def answer(scheme, size):
        assert scheme == "gloo"
        buffer = torch.zeros(size // 4)
        took = []
        for _ in range(3 + repetitions(size)):
            distributed.barrier()
            begin = time.perf_counter_ns()
            distributed.all_reduce(buffer)
            took.append(time.perf_counter_ns() - begin)
        return scheme, took[3:]

    serve(rank, answer)


def build_osu(folder):
    """Build OSU's allreduce in ``folder`` for MPICH; return the program."""
    wrappers = [f"{name}={ROOT}/.venv/bin/{wrapper}" for name, wrapper in (("CC", "mpicc"), ("CXX", "mpicxx"))]
    place = Path(folder, "c/mpi/collective/blocking")  # since version 7.1
    for command in ([Path(OSU, "configure").resolve(), *wrappers], ["make", "-C", place, "osu_allreduce"]):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return place / "osu_allreduce"


def osu(program, ranks, size):
    """Return the maximum over ranks of the time of OSU's allreduce, mean over its iterations (s)."""
    count = max(100, min(20_000, (1 << 28) // size))  # a loop without barriers needs more than ours
    launcher, *_ = mpich(ranks)
    command = [launcher, "-n", str(ranks), program, "-f", "-m", f"{size}:{size}", "-x", "100", "-i", str(count)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    last = [line.split() for line in lines if line.strip() and not line.startswith("#")][-1]
    return float(last[3]) * 1e-6  # size, average, minimum, maximum


def seconds(answers):
    """Median over operations, each as long as its slowest rank's."""
    return statistics.median(map(max, zip(*(took for _, took in answers), strict=True))) * 1e-9


def compare(ranks, sizes, rounds):
    me = str(Path(__file__).resolve())
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"{folder}/meeting"
        gloo = [[sys.executable, me, "--gloo", str(rank), str(ranks), meeting] for rank in range(ranks)]
        programs = {
            "MPICH": (ranks, [mpich(ranks, me, "--mpi")]),
            "Open MPI": (ranks, [open_mpi(ranks, me, "--mpi")]),
            "gloo": (ranks, gloo),
        }
        ours = [(library, scheme) for library in ("MPICH", "Open MPI") for scheme in SCHEMES]
        theirs = [(library, scheme) for library in ("MPICH", "Open MPI") for scheme in NATIVES]
        theirs += [("gloo", "gloo")]
        beside = [("OSU", "osu_allreduce")] if OSU else []
        program = build_osu(folder) if OSU else None
        shuffled = random.Random(0)
        with ensembles(programs) as found:
            for size in sizes:
                times = {contender: [] for contender in ours + theirs + beside}
                chosen = {}
                for _ in range(rounds):
                    for library, scheme in shuffled.sample([*times], len(times)):
                        if library == "OSU":
                            times[library, scheme].append(osu(program, ranks, size))
                            continue
                        answers = found[library].play(scheme=scheme, size=size)
                        times[library, scheme].append(seconds(answers))
                        chosen[library, scheme] = answers[0][0]
                yield size, times, chosen, ours, theirs


def best(times, contenders):
    return min(contenders, key=lambda one: statistics.median(times[one]))


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--ranks", default="2,4")
    arguments.add_argument("--sizes", default=",".join(map(str, SIZES)))
    arguments.add_argument("--mpi", action="store_true", help=argparse.SUPPRESS)
    arguments.add_argument("--gloo", nargs=3, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.mpi:
        play_mpi()
        return
    if options.gloo:
        rank, ranks, meeting = options.gloo
        play_gloo(int(rank), int(ranks), meeting)
        return
    print(f"Allreduce on {processor()}, {os.cpu_count()} cores, {options.rounds} rounds\n")
    if not OSU:
        print("OSU was not run: set OSU=/path/to/osu-micro-benchmarks to the folder of its sources.\n")
    cells = "best scheme | us | best native | us | ratio | quartiles | auto | us | best/auto | quartiles"
    print(f"| ranks | bytes | {cells} |\n{'|---' * 12}|")
    sizes = [*map(int, options.sizes.split(","))]
    for ranks in map(int, options.ranks.split(",")):
        for size, times, chosen, ours, theirs in compare(ranks, sizes, options.rounds):
            plain = [one for one in ours if one[1] != "auto"]
            mine, its = best(times, plain), best(times, theirs)
            cells = []
            for one in (mine, its):
                cells += [" ".join(dict.fromkeys(one)), f"{statistics.median(times[one]) * 1e6:.1f}"]
            autos = []
            for library in ("MPICH", "Open MPI"):
                there = [one for one in times if one[0] == library and one[1] != "auto"]
                automatic = (library, "auto")
                row = ratio(times[best(times, there)], times[automatic])
                took = f"{statistics.median(times[automatic]) * 1e6:.1f}"
                autos.append(f"{library} {chosen[automatic]} | {took} | {row}")
            print(f"| {ranks} | {size} | {' | '.join(cells)} | {ratio(times[its], times[mine])} | {autos[0]} |")
            pair = [("MPICH", "native"), *([("OSU", "osu_allreduce")] if OSU else [])]
            beside = "; ".join(f"{' '.join(one)} {statistics.median(times[one]) * 1e6:.2f} us" for one in pair)
            print(f"| | | {beside} | | | | | | {autos[1]} |", flush=True)


if __name__ == "__main__":
    main()
