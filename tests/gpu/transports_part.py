"""Messages between ranks that share a GPU, by every transport: what arrives, and how fast beside a pinned copy.

As a program it is a rank: sums that must be right, and a bandwidth between ranks 0 and 1.
"""

import importlib.util
import os
import subprocess
import sys
from time import perf_counter

import numpy as np

KINDS = ("staged", "ipc", "device")
RANKS = (2, 4)
SIZES = (1, 1003, (1 << 20) + 17, 1 << 24)
REPETITIONS = 5


def transports(results, name, tiny):
    if importlib.util.find_spec("mpi4py") is None:
        results.put("transports", shown="not run: mpi4py is not installed; carry its wheel and an MPI library's")
        return
    from hpcdl.launch.mpirun import NoLauncher, launch_environment, mpirun, python_command

    try:
        mpirun()
    except NoLauncher as error:
        results.put("transports", shown=f"not run: {error}")
        return
    for kind in KINDS if name == "cupy" else ("host",):
        for ranks in RANKS[:1] if tiny else RANKS:
            title = f"{kind}, {ranks} ranks on one GPU"
            if results.left() < 20:
                results.put(title, shown="not run: no time left")
                continue
            command = python_command(ranks, [__file__, name, str(int(tiny))])
            environment = {**os.environ, **launch_environment(), "HPCDL_TRANSPORT": kind}
            if kind == "host":
                environment.pop("HPCDL_TRANSPORT")
            try:
                keys = {"env": environment, "timeout": min(40, results.left())}
                done = subprocess.run(command, **keys, capture_output=True, text=True, check=False)
            except subprocess.TimeoutExpired:
                put(results, title, kind, None, "no answer")
                continue
            print(done.stdout, done.stderr)
            answers = [line[7:] for line in done.stdout.splitlines() if line.startswith("answer ")]
            answer = answers[-1] if answers and not done.returncode else None
            put(results, title, kind, answer, done.stderr[-200:])


def put(results, title, kind, answer, why):
    """A library that is not made for device pointers may crash: that is an answer, not a failure."""
    if answer is not None:
        results.put(title, ok=True, shown=answer)
    elif kind == "device":
        results.put(title, shown=f"the MPI library does not take device pointers ({why.strip()[-80:]!r})")
    else:
        results.put(title, ok=False, error=why)


def main():
    from hpcdl.aggregation.ring import ring
    from hpcdl.fabric.mpi.comm import Mpi
    from hpcdl.nn.backend import backend

    name, tiny = sys.argv[1], sys.argv[2] == "1"
    mpi, kernels = Mpi(), backend(name)
    comm = mpi.comm
    for size in SIZES[:3] if tiny else SIZES:
        values = np.arange(size) % 1000 + comm.rank
        mine = kernels.asarray(values.astype(np.float32))
        mpi.run(ring(comm, mine))
        expected = comm.size * (np.arange(size) % 1000) + comm.size * (comm.size - 1) // 2
        assert (kernels.to_host(mine) == expected).all(), f"{size} elements"
    size = 1 << (20 if tiny else 28)
    out, back = (kernels.zeros(size // 4, "float32") for _ in range(2))
    seconds = []
    for _ in range(REPETITIONS):
        mpi.run(comm.native("barrier", np.empty(0)))
        begin = perf_counter()
        if comm.rank == 0:
            mpi.run(comm.send(out, 1))
            mpi.run(comm.recv(back, 1))
        elif comm.rank == 1:
            mpi.run(comm.recv(back, 0))
            mpi.run(comm.send(out, 0))
        seconds.append((perf_counter() - begin) / 2)
    if comm.rank == 0:
        kind = mpi.transport.kind if mpi.transport else "host"
        best = sorted(seconds)[len(seconds) // 2]
        print(
            f"answer {kind}: sums right, {size >> 20} MiB one way in {1e3 * best:.2f} ms, {size / best / 1e9:.2f} GB/s"
        )


if __name__ == "__main__":
    main()
