"""What there is: devices, versions, alignment, CUDA-awareness, what copies reach."""

import sys

import numpy as np
from gpu.timing import summary, times

from hpcdl.nn.backend import backend


def probes(results, name, tiny):
    results.put("python", version=sys.version.split()[0], numpy=np.__version__)
    kernels = backend(name)
    array = kernels.asarray(np.arange(5, dtype=np.float32))
    results.put("an array comes back", ok=bool((kernels.to_host(array) == np.arange(5)).all()))
    if name == "cupy":
        on_a_gpu(results, kernels, tiny)


def on_a_gpu(results, kernels, tiny):
    import cupy

    from hpcdl.fabric.device.transport import PinnedCopies, cuda_aware
    from hpcdl.nn.kernels.cupy.gpu import gpu_availability

    results.put("device", shown=gpu_availability()[1])
    for i in range(cupy.cuda.runtime.getDeviceCount()):
        facts = cupy.cuda.runtime.getDeviceProperties(i)
        results.put(
            f"device {i}",
            name=facts["name"].decode(),
            sm=facts["major"] * 10 + facts["minor"],
            multiprocessors=facts["multiProcessorCount"],
            bytes=facts["totalGlobalMem"],
        )
    addresses = [kernels.zeros(size, "float32").data.ptr for size in (1, 3, 1000, 10**6)]
    results.put("arrays begin at multiples of 256", ok=all(address % 256 == 0 for address in addresses))
    try:
        from mpi4py import MPI

        results.put("MPI", version=MPI.Get_library_version().split("\n")[0], cuda_aware=cuda_aware())
    except (ImportError, RuntimeError) as error:
        results.put("MPI", version=f"not there: {error}", cuda_aware=False)
    size = 1 << (20 if tiny else 28)
    device, copies = kernels.zeros(size, "uint8"), PinnedCopies(size)
    words = copies.borrow()[0][:size]
    for direction, copy in (("out", copies.to_host), ("in", lambda a, b: copies.to_device(b, a))):

        def whole(copy=copy):
            copy(device, words)
            copies._stream.synchronize()

        taken = summary(times(whole, 5, on_gpu=False))
        results.put(f"pinned copy {direction}", bytes=size, **taken, gb_per_s=size / taken["median_ms"] / 1e6)
