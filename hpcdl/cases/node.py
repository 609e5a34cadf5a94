"""``kind = "node"``: hosts compute, one after the other or all at once, and a slow one shows.

The ranks of a host work at the same time. ``work``: ``matrix_product`` is a product of two square matrices
(BLAS), ``triad`` the memory test a = b + s c of STREAM (McCalpin 1995), ``convolution`` forward and backward of
a convolution of hpcdl; ``to_device`` and ``from_device`` are copies between host and GPU. ``pattern``: with
``alone`` one host works while the others sleep, with ``together`` all do. ``confirm``: see
:mod:`hpcdl.cases.parts.measuring`.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns
from typing import Any, Final

import numpy as np

from hpcdl.cases.keys.checks import Check, makes, too_large
from hpcdl.cases.keys.key import MAX_RANKS, MAX_REPETITIONS, MAX_THREADS, Choice, key
from hpcdl.cases.parts.measuring import Times, confirmed, hosts_of_ranks, median_ns
from hpcdl.fabric.comm import Comm
from hpcdl.launch.machine import held_back_ns
from hpcdl.nn.backend import Backend, Weights, backend
from hpcdl.nn.geometry import WindowGeometry
from hpcdl.trace.recorder import Scalar
from hpcdl.training.parts.journal import Journal

WORKS: Final = ("matrix_product", "triad", "convolution", "to_device", "from_device")
DTYPE: Final = "float32"
ITEMSIZE: Final = 4
SIDE: Final = 768
"""Rows of the matrices of a product: 0.9 GFLOP."""
PASSES: Final = {"matrix_product": 3, "triad": 2, "convolution": 3}
"""Executions in a repetition, so that it takes tens of milliseconds: a group's limit of CPU time needs them."""
TRIAD_LENGTH: Final = 1 << 23
"""Elements of each of the three vectors of a triad: 32 MiB, beyond the caches of a core's share."""
BLOCK: Final = 1 << 14
"""Elements of a block of the triad on a processor: its product stays in the first caches."""
IMAGES, IMAGE, KERNEL = 4, (28, 28, 64), (3, 3)
"""Convolution of 64 to 64 channels, as in the middle of VGG and ResNet."""


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """Keys of a node case."""

    work: str = key("matrix_product", choices=WORKS, role="problem", column="collective")
    pattern: str = key("alone", choices=("alone", "together"), role="problem")
    ranks: int = key(least=1, most=MAX_RANKS, role="scale")
    backend: Choice = key(Choice("backends", "numpy"), folder="backends", role="problem")
    repetitions: int = key(10, least=1, most=MAX_REPETITIONS, role="sampling")
    warmup: int = key(1, least=0, most=MAX_REPETITIONS, role="sampling")
    confirm: int = key(1, least=1, most=9, role="sampling")
    threads: int = key(1, least=1, most=MAX_THREADS, role="problem", column="threads_per_rank")
    trace: str = key("steps", choices=("events", "steps"))

    @property
    def kernels(self) -> Backend:
        """The library that computes."""
        return backend(self.backend.name, **self.backend.settings)

    @property
    def flop(self) -> int | None:
        """Floating-point operations of a repetition on a rank; None of a work that moves bytes."""
        height, width, channels = IMAGE
        one_pass = 2 * IMAGES * height * width * channels * channels * KERNEL[0] * KERNEL[1]
        flop = {"matrix_product": 2 * SIDE**3, "convolution": 3 * one_pass}.get(self.work)
        return flop and flop * PASSES[self.work]

    @property
    def moved_bytes(self) -> int | None:
        """Bytes that a repetition reads and writes, as STREAM counts them; None of a work that computes."""
        if self.flop:
            return None
        return TRIAD_LENGTH * ITEMSIZE * (3 * PASSES["triad"] if self.work == "triad" else 1)


SPEC: Final = NodeSpec


def memory_bytes(spec: NodeSpec) -> int:
    """See :class:`hpcdl.suite.Kind`."""
    return ITEMSIZE * (3 * SIDE**2 if spec.flop else 3 * TRIAD_LENGTH)


CHECKS: Final = (
    makes("backend", "kernels"),
    Check(
        "work",
        lambda case: case.work.endswith("_device") and case.kernels.on_host,
        "{work!r} needs a backend on a GPU, such as cupy; {backend} computes on the host",
    ),
    Check("work", lambda case: too_large(memory_bytes(case.spec)), "{work} on a rank: {wrong}"),
)
"""Checks of a node case, in order."""


def identity(spec: NodeSpec) -> list[str]:
    return [spec.work, spec.pattern, f"p{spec.ranks}"]


def fields(spec: NodeSpec) -> dict[str, Scalar]:
    return {
        "collective": spec.work,
        "pattern": spec.pattern,
        "message_bytes": spec.moved_bytes,
        "work_flop": spec.flop,
        "dtype": DTYPE,
        "backend": str(spec.backend),
        "threads_per_rank": spec.threads,
        "warmup_steps": spec.warmup,
    }


def program(spec: NodeSpec, journal: Journal) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    async def measure(comm: Comm) -> dict[str, Scalar]:
        hosts = await hosts_of_ranks(comm)
        every, mine = sorted(set(hosts)), hosts[comm.rank]
        turns = [[host] for host in every] if spec.pattern == "alone" else [every]
        sleeping_barrier = comm.sleeping_barrier  # type: ignore[attr-defined] # MPI's alone
        spans = list[list[tuple[int, int]]]()

        async def in_turn(working: Sequence[Sequence[int]]) -> Times:
            """Let the hosts of each turn work; return (p,) times (ns) of each host's slowest rank, else 0."""
            times = np.zeros(comm.size, np.int64)
            for turn in working:
                if mine in turn:
                    spans.append(timed(spec))
                    times[mine] = median_ns(spans[-1][spec.warmup :])
                sleeping_barrier()  # the library's own would spin on cores that others compute on
            slowest: Times = (await comm.allgather_words(times)).max(axis=0)
            return slowest

        async def again(working: Sequence[int]) -> Times:
            return await in_turn([[host] for host in working] if spec.pattern == "alone" else [working])

        first = await in_turn(turns)
        journal.repetitions(spans[0], 0, 0)
        if spec.confirm == 1:
            return {}
        # the control of a host may be any other
        return {"measured_again": await confirmed(first, [every], again, spec.confirm)}

    return measure


def timed(spec: NodeSpec) -> list[tuple[int, int]]:
    """Return begin and end (ns) of each repetition of the work on this rank.

    Its end is earlier by the time that the rank waited for its core because of other processes: that is a
    disturbance, not a slow node.
    """
    kernels = spec.kernels
    work, settle = prepared(spec.work, kernels)
    spans = []
    for _ in range(spec.warmup + spec.repetitions):
        before = np.array([*held_back_ns(), thread_time_ns()])
        begin = perf_counter_ns()
        for _ in range(PASSES.get(spec.work, 1)):
            work()
        settle()
        end = perf_counter_ns()
        ready, limited, ran = (np.array([*held_back_ns(), thread_time_ns()]) - before).tolist()
        # no longer than the thread did not run: the kernel's count of waiting may be more
        waited = min(ready, end - begin - ran) - limited
        spans.append((begin, end - max(0, waited)))
    return spans


def prepared(work: str, kernels: Backend) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a work with its arrays, and a function that waits until the device has done it."""

    def vector(size: int) -> Any:
        array = kernels.zeros(size, DTYPE)
        array[:] = 0.5
        return array

    if work == "matrix_product":
        left, right, product = (vector(SIDE**2).reshape(SIDE, SIDE) for _ in range(3))
        return lambda: np.matmul(left, right, out=product), lambda: kernels.to_host(product[0, :1])
    if work == "convolution":
        return _convolution(kernels, vector)
    if work == "triad":
        a, b, c = (vector(TRIAD_LENGTH) for _ in range(3))
        block = BLOCK if kernels.on_host else TRIAD_LENGTH
        scratch, parts = np.empty_like(c[:block]), [slice(at, at + block) for at in range(0, TRIAD_LENGTH, block)]

        def triad() -> None:
            for part in parts:
                np.multiply(c[part], 3.0, out=scratch)
                np.add(b[part], scratch, out=a[part])

        return triad, lambda: kernels.to_host(a[:1])
    on_host, on_device = np.full(TRIAD_LENGTH, 0.5, DTYPE), vector(TRIAD_LENGTH)
    if work == "to_device":
        return lambda: kernels.asarray(on_host), lambda: kernels.to_host(on_device[:1])
    return lambda: kernels.to_host(on_device), lambda: None


def _convolution(
    kernels: Backend, vector: Callable[[int], Any]
) -> tuple[Callable[[], object], Callable[[], object]]:
    channels = IMAGE[2]
    op = kernels.convolution(WindowGeometry(IMAGE, IMAGE, KERNEL, (1, 1), (1, 1), DTYPE))
    size = channels * channels * KERNEL[0] * KERNEL[1]
    shape = (channels, *KERNEL, channels)
    weight, dweight = (vector(size).reshape(shape) for _ in range(2))
    weights = Weights(weight, vector(channels), dweight, vector(channels))
    images = vector(IMAGES * int(np.prod(IMAGE))).reshape(IMAGES, *IMAGE)

    def passes() -> None:
        op.backward(op.forward(images, weights), weights, needs_dx=True)

    return passes, lambda: kernels.to_host(dweight[0, 0, 0, :1])
