"""What each rank of the part ``transports`` does: sums that must be right, and a bandwidth between ranks 0 and 1."""

import sys
from time import perf_counter

import numpy as np

from hpcdl.aggregation.ring import ring
from hpcdl.fabric.mpi.comm import Mpi
from hpcdl.nn.backend import backend

SIZES = (1, 1003, (1 << 20) + 17, 1 << 24)
REPETITIONS = 5


def main():
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
