"""Contracts of schemes and strategies, checked on ranks of one process, and of compressors and models, on arrays.

An aggregation scheme: sums, bits, deadlocks, stated costs. A training strategy: deadlocks, images, losses, steps.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, product
from typing import Any, Final, TypeAlias

import numpy as np

from hpcdl import suite
from hpcdl.aggregation.parts import cost
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.cases.keys.key import Choice, architecture
from hpcdl.cases.parts.operations import Operation, sizes
from hpcdl.compression.parts.protocol import Compression, Layout
from hpcdl.exit_codes import UsageError
from hpcdl.fabric.comm import Array, Comm, Counters
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.task import Program
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.launch.preflight import Finding
from hpcdl.nn.backend import backend
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer, SizedLayer
from hpcdl.nn.replica import Replica, Tensor
from hpcdl.nn.volumes import volumes
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.plan import kind_of
from hpcdl.training.parts.traits import Strategy

Scheme: TypeAlias = Callable[..., Program[Any]]

RANKS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17)
"""Powers of two, their neighbours and primes."""
SCHEDULES, TRAINING_SCHEDULES = 5, 3
"""Random orders in which the ranks take turns, for each number of ranks, and length of a sum."""
PER_RANK: Final = 64
"""Elements per rank in the cost check, so that every chunk has the same length."""
NETWORK: Final = NETWORKS["ethernet-10g"]
"""Network of the cost check: alpha, beta and gamma all differ from 0."""
PIECES: Final = (1, 300, 2, 700)
"""Elements of vectors that are summed at the same time."""

TRAINING_RANKS: Final = (1, 2, 3, 4)
STEPS: Final = 6
BATCH: Final = 24
"""Images of a step, of all ranks: divisible by each of TRAINING_RANKS."""
TRAINING: Final = f"""
[suite]
name = "check"
[[case]]
kind = "train"
model = "lenet5"
dataset = "digits"
learning_rate = 0.01
global_batch = {BATCH}
steps = {STEPS}
training = %s
ranks = %d
"""


class BrokenContractError(Exception):
    """A check found a difference; the message has its place."""


def results(checks: Iterable[tuple[str, Callable[[], str]]]) -> Iterator[Finding]:
    """Yield the result of each check: what it is about, and a function that returns how it was checked."""
    for what, check in checks:
        try:
            yield Finding("ok", what, check())
        except Exception as error:  # noqa: BLE001 - the object is a user's and may raise anything
            reason = str(error) if isinstance(error, BrokenContractError) else f"{type(error).__name__}: {error}"
            yield Finding("FAILED", what, reason)


def check_scheme(scheme: Scheme, traits: Aggregation) -> Iterator[Finding]:
    """Yield the result of each check of ``scheme``, an ``async def`` over a communicator and a vector.

    A scheme states no cost if a library or another scheme decides its messages. Raises ValueError for a scheme
    of entries.
    """
    if traits.sparse:
        raise ValueError(f"{scheme.__name__!r} sums entries; only schemes that sum vectors can be checked")
    checks = [
        ("exact sums", _sums),
        ("equal bits on all ranks", _bits),
        ("several at once", _several),
        ("sub-communicators", _parts),
    ]
    if not (traits.native or traits.adaptive):
        checks += [("messages and bytes as stated", _volume), ("simulated time as stated", _time)]
        checks += [("simulated by symmetry as on all ranks", _symmetry)]
    yield from results((what, partial(check, scheme)) for what, check in checks)


def _drawn(ranks: int, size: int, seed: int = 0) -> Array:
    """Return whole numbers of each rank (ranks, size): sums are exact."""
    return np.random.default_rng([ranks, size, seed]).integers(-1000, 1001, (ranks, size)).astype(np.float32)


def _check_sum(rows: Array, inputs: Array, where: str) -> None:
    for rank, vector in enumerate(rows):
        if not np.array_equal(vector, inputs.sum(axis=0)):
            raise BrokenContractError(f"{where}: rank {rank} does not hold the sum")


def _sums(scheme: Scheme) -> str:
    runs = 0
    for ranks in RANKS:
        for size in sorted({0, 1, ranks - 1, ranks, ranks + 1, 1009}):
            for seed in range(SCHEDULES):
                inputs = _drawn(ranks, size, seed)
                where, rows = f"{ranks} ranks, {size} elements, schedule {seed}", inputs.copy()
                try:
                    in_process(ranks, seed).run(partial(_on_row, scheme, rows))
                except Exception as error:
                    raise BrokenContractError(f"{where}: {type(error).__name__}: {error}") from error
                _check_sum(rows, inputs, where)
                runs += 1
    return f"{runs} runs: {len(RANKS)} numbers of ranks from {RANKS[0]} to {RANKS[-1]}, lengths from 0"


def _bits(scheme: Scheme) -> str:
    for ranks in (2, 3, 5, 8, 13):
        # numbers whose sum depends on the order of adding
        inputs, bits = np.random.default_rng(ranks).standard_normal((ranks, 1003)).astype(np.float32), set[bytes]()
        for seed in range(SCHEDULES):
            rows = inputs.copy()
            in_process(ranks, seed).run(partial(_on_row, scheme, rows))
            bits |= {row.tobytes() for row in rows}
        if len(bits) > 1:
            raise BrokenContractError(f"{ranks} ranks: sums differ by their last bits between ranks or schedules")
    return f"{SCHEDULES} schedules of 2 to 13 ranks"


def _several(scheme: Scheme) -> str:
    async def pieces(comm: Comm) -> None:
        calls = [scheme(comm, piece[comm.rank]) for piece in rows]
        tasks = [comm.start(call) for call in calls[:-1]]
        await calls[-1]
        for task in reversed(tasks):
            await task

    for ranks in (2, 3, 5, 8):
        inputs = [_drawn(ranks, size) for size in PIECES]
        for seed in range(SCHEDULES):
            rows = [piece.copy() for piece in inputs]
            in_process(ranks, seed).run(pieces)
            for number, (piece, given) in enumerate(zip(rows, inputs, strict=True)):
                _check_sum(piece, given, f"{ranks} ranks, schedule {seed}, piece {number} of {len(PIECES)}")
    return "four pieces of a vector, joined in another order"


def _parts(scheme: Scheme) -> str:
    inputs = _drawn(9, 50)
    rows = inputs.copy()

    async def program(comm: Comm) -> None:
        part = await comm.split(comm.rank % 4, -comm.rank)
        await scheme(part, rows[comm.rank])

    in_process(9, 1).run(program)
    for group in range(4):
        _check_sum(rows[group::4], inputs[group::4], f"group {group} of 4 of 9 ranks")
    return "four groups of 9 ranks"


def _on_row(scheme: Scheme, rows: Array, comm: Comm) -> Program[None]:
    return scheme(comm, rows[comm.rank])


def _volume(scheme: Scheme) -> str:
    stated = {line: formula for line, formula in cost.costs(scheme).items() if not line.startswith("Time")}
    missing = {"Messages", "Bytes"} - {line.partition(", ")[0] for line in stated}
    if missing:
        example = "Messages, busiest rank: 2*(p - 1)"
        raise BrokenContractError(
            f"the docstring states no {' and no '.join(sorted(missing))}, such as {example!r}"
        )
    for ranks in RANKS:
        world, vector = in_process(ranks), np.zeros((ranks, PER_RANK * ranks), np.float32)
        world.run(partial(_on_row, scheme, vector))
        sent = {"Messages": world.messages, "Bytes": world.bytes}
        for line, formula in stated.items():
            what, _, which = line.partition(", ")
            total = sum if which == "all ranks" else max
            counted, claimed = total(sent[what]), cost.cost(formula, ranks, vector[0].nbytes)
            if abs(counted - claimed) > 1e-9 * claimed:
                raise BrokenContractError(f"{line}: {formula} is {claimed:g} on {ranks} ranks, counted: {counted}")
    return f"{len(stated)} formulas, {RANKS[-1]} ranks at most"


def _time(scheme: Scheme) -> str:
    link, compared = NETWORK.link, 0
    for ranks in RANKS:
        vector = phantom(PER_RANK * ranks)
        stated = cost.time(scheme, ranks, vector.nbytes, link.alpha, link.beta, NETWORK.gamma)
        if stated is None:
            continue
        world = simulated(ranks, NETWORK)
        world.run(lambda comm, vector=vector: scheme(comm, vector))  # type: ignore[misc]
        compared += 1
        if abs(world.now - stated) > 1e-9 * stated:
            raise BrokenContractError(f"{ranks} ranks: stated {stated:.4g} s, simulated {world.now:.4g} s")
    if not compared:
        raise BrokenContractError("the docstring states no time, such as 'Time: 2*(p - 1)*(alpha + n/p*beta)'")
    return f"{compared} numbers of ranks on {NETWORK.name}"


def _symmetry(scheme: Scheme) -> str:
    for ranks in RANKS:
        for length, per_host in ((PER_RANK * ranks, 1), (PER_RANK * ranks, 2), (1009, 1), (3, 1)):
            network = NETWORK.on(per_host)
            operation = Operation("allreduce", partial(scheme), ranks, length, "float32")
            simulation, world = operation.simulate(network), simulated(ranks, network)
            world.run(operation)
            if abs(simulation.seconds - world.now) > 1e-9 * world.now:
                where = f"{ranks} ranks, {per_host} per host, {length} elements"
                times = f"{simulation.seconds:.4g} s instead of {world.now:.4g} s"
                raise BrokenContractError(f"{where}: {simulation.simulated_ranks} stand for all: {times}")
    return f"{RANKS[-1]} ranks at most"


def check_strategy(name: str, traits: Strategy) -> Iterator[Finding]:
    """Yield the result of each check of the strategy ``name``, on the numbers of ranks that it does not refuse."""
    trainings: dict[tuple[int, int], list[Array]] = {}

    def trains() -> str:
        refused = ""
        for ranks, schedule in product(TRAINING_RANKS, range(TRAINING_SCHEDULES)):
            try:
                (case,) = suite.parse(TRAINING % (json.dumps(name), ranks), "check").cases
            except UsageError as error:
                refused = str(error)
                continue
            try:
                trainings[ranks, schedule] = _train(case, schedule)
            except Exception as error:
                where = f"{ranks} ranks, schedule {schedule}"
                raise BrokenContractError(f"{where}: {type(error).__name__}: {error}") from error
        if not trainings:
            raise BrokenContractError(refused)
        numbers = sorted({ranks for ranks, _ in trainings})
        return f"{STEPS} steps of LeNet-5, {TRAINING_SCHEDULES} schedules each, on {numbers} ranks"

    (trained,) = results([("trains", trains)])
    yield trained
    if trained.verdict == "FAILED":
        return
    for what, holds in {**TRAINED, **(IN_LOCKSTEP if traits.lockstep else {})}.items():
        wrong = [key for key, ranks in trainings.items() if not holds(ranks, trainings[key[0], 0])]
        where = "not on {} ranks, schedule {}".format(*wrong[0]) if wrong else f"{len(trainings)} trainings"
        yield Finding("FAILED" if wrong else "ok", what, where)


TRAINED: Final[dict[str, Callable[[list[Array], list[Array]], bool]]] = {
    "each image of the batches once": lambda ranks, _: (
        sum(rows["images"].sum() for rows in ranks) == STEPS * BATCH
    ),
    "finite losses": lambda ranks, _: all(np.isfinite(rows["loss"]).all() for rows in ranks),
}
IN_LOCKSTEP: Final[dict[str, Callable[[list[Array], list[Array]], bool]]] = {
    "equal steps of all ranks, as declared (lockstep)": lambda ranks, _: all(len(rows) == STEPS for rows in ranks),
    "equal losses in all schedules (lockstep)": lambda ranks, first: all(
        np.array_equal(rows["loss"], others["loss"]) for rows, others in zip(ranks, first, strict=True)
    ),
}
"""Conditions of the steps of each rank, and of those in the first schedule."""


def _train(case: suite.Case, schedule: int) -> list[Array]:
    recorders = [Recorder(events=False) for _ in range(case.ranks)]

    async def rank(comm: Comm) -> None:
        journal = Journal(recorders[comm.rank], lambda: Counters(0, 0, 0, 0, 0))
        await case.module.program(case.spec, journal)(comm)

    in_process(case.ranks, schedule).run(rank)
    return [recorder.pack()["steps"] for recorder in recorders]


SHAPES: Final = ((5, 7), (11,), (3, 2, 2, 4), (1,), (257,))
"""Tensors of a gradient of 352 entries; only the first begins at a multiple of 8."""
SPANS: Final = (slice(0, 352), slice(95, 352), slice(94, 95), slice(352, 352))
"""Whole tensors: all, the last, one of one entry, none."""
IMAGES: Final = 2


def layout(shapes: Sequence[Shape], **fields: Any) -> Layout:
    """Return the layout of a gradient with tensors of ``shapes``, one after the other."""
    *offsets, size = accumulate(map(math.prod, shapes), initial=0)
    tensors = [Tensor(f"{i}.weight", offsets[i], shape, decay=False) for i, shape in enumerate(shapes)]
    return Layout(size=size, tensors=tensors, **fields)


def compressed(compressor: Any, span: slice, vector: Array, step: int = 0) -> tuple[Array, Array, str]:
    """Return what a rank sends and keeps of ``vector``, (span length,), and the message, as text."""
    kept, sent, kind = vector.copy(), np.zeros_like(vector), kind_of(type(compressor))
    if kind == "vectors":
        rest = np.empty_like(vector)
        pieces = [piece.copy() for piece in compressor.rounds(span, kept, rest, step)]
        _same("vectors", [(len(piece), str(piece.dtype)) for piece in pieces], compressor.lengths(span))
        return kept, rest, repr([piece.tobytes() for piece in pieces])
    if kind == "entries":
        entries = compressor.select(span, kept, step)
        if len(entries.indices) > compressor.most(span) or (np.diff(entries.indices) <= 0).any():
            raise BrokenContractError(f"{len(vector)} entries: positions do not rise, or are more than stated")
        sent[entries.indices] = entries.values
        return sent, kept, repr([part.tobytes() for part in entries])
    wire = np.full(compressor.bound(span), 255, np.uint8)
    message = wire[: compressor.encode(span, kept, wire, step)]
    if (expected := compressor.expected(span)) is not None:
        _same("bytes of a message", len(message), expected)
    compressor.decode(span, message.copy(), sent)
    return sent, kept, repr(message.tobytes())


def _same(what: str, actual: object, stated: object) -> None:
    if actual != stated:
        raise BrokenContractError(f"{what}: {actual}, stated: {stated}")


def check_conservation(compressor: Any, span: slice, vector: Array) -> None:
    """Raise BrokenContractError unless the sum of what is sent and kept is ``vector``, (span length,), rounded."""
    sent, kept, _ = compressed(compressor, span, vector, len(vector))
    error = np.abs(sent.astype("float64") + kept - vector)
    if not (error <= np.finfo(vector.dtype).eps * np.maximum(np.abs(sent), np.abs(kept))).all():
        where = f"{len(vector)} values of {vector.dtype} up to {np.abs(vector).max():.3g}"
        raise BrokenContractError(f"{where}: they differ from the input by {error.max():.3g}")


def check_compressor(make: Callable[..., Any], traits: Compression) -> Iterator[Finding]:
    """Yield the result of each check of a compressor, a class that is made with a layout."""
    spans = SPANS if traits.whole_tensors else (*SPANS, slice(7, 300))
    random = np.random.default_rng(19)

    def conserved() -> str:
        for span, dtype, scale in product(spans, ("float32", "float64"), (1.0, 1e-40, 0.0)):
            vector = scale * random.standard_normal(span.stop - span.start)
            check_conservation(make(layout(SHAPES, dtype=dtype)), span, vector.astype(dtype))
        return f"{len(spans)} pieces of a gradient, with none and with tiny values"

    def repeated() -> str:
        vector, fields = random.standard_normal(352).astype("float32"), {"seed": 3, "rank": 2, "ranks": 5}
        first, second = (compressed(make(layout(SHAPES, **fields)), SPANS[0], vector, 7)[2] for _ in range(2))
        _same("messages of equal seeds, ranks and steps", first == second, True)
        return "seed, rank and step decide a message"

    def finite() -> str:
        for value in (math.nan, math.inf, -math.inf):
            vector = np.ones(352, "float32")
            vector[200] = value
            try:
                compressed(make(layout(SHAPES)), SPANS[0], vector)
            except FloatingPointError:
                continue
            raise BrokenContractError(f"{value} was compressed")
        return "FloatingPointError"

    def zeros() -> str:
        vector = random.standard_normal(352).astype("float32")
        vector[::2] = 0
        sent, _, _ = compressed(make(layout(SHAPES)), SPANS[0], vector)
        _same("zeros stay zeros", bool((sent[::2] == 0).all()), traits.sends_zeros)
        return f"sends_zeros={traits.sends_zeros}"

    yield from results(
        [
            ("what is sent and kept is the input, in messages as long as stated", conserved),
            ("equal messages again", repeated),
            ("values that are not finite refused", finite),
            ("zeros as declared", zeros),
        ]
    )


def check_model(name: str, shape: Shape | None = None) -> Iterator[Finding]:
    """Yield each check of a model on images of ``shape``, or of its own. Raises ValueError for sizes alone."""
    choice = Choice("models", name)
    shape, layers = architecture(choice, None, shape)
    if any(isinstance(layer, SizedLayer) for layer in layers):
        raise ValueError(f"{name!r} has sizes alone; only layers that compute can be checked")
    yield from results(
        [
            ("one output per class", partial(_classes, choice, shape)),
            ("sizes alone as with arithmetic", partial(_sizes, layers, shape)),
            ("gradients as differences of the loss", partial(_gradients, layers, shape)),
        ]
    )


def _classes(choice: Choice, shape: Shape) -> str:
    for classes in (3, 10):
        inner = shape
        for layer in choice.make(shape, classes):
            layer.declare(inner)
            inner = layer.output(inner)
        _same("shape of the last layer", inner, (classes,))
    return f"images {'x'.join(map(str, shape))}"


def _sizes(layers: Sequence[Layer], shape: Shape) -> str:
    sized, replica = (Replica(layers, shape, backend=kernels) for kernels in (sizes(), backend("numpy")))
    _same("parameters", [*sized.tensors], [*replica.tensors])
    _same("number of parameters", volumes(layers, shape, 1).parameters, replica.parameters.size)
    outputs = []
    for network in (sized, replica):
        x = np.zeros((IMAGES, *shape), np.float32)
        outputs.append([(x := stage.forward(x)).shape for stage in network.stages])
    _same("shapes of outputs", *outputs)
    return f"{len(replica.tensors)} tensors, {replica.parameters.size:,} parameters"


def _gradients(layers: Sequence[Layer], shape: Shape) -> str:
    replica = Replica(layers, shape, backend=backend("numpy"), dtype="float64", seed=1)
    random = np.random.default_rng(2)
    images = random.standard_normal((IMAGES, *shape))
    labels = random.integers(0, replica.output[0], IMAGES)
    trained = [stage.span for stage in replica.stages if stage.span.stop > stage.span.start]
    spans = trained[:: -(-len(trained) // 8)]  # at most eight layers
    if wrong := gradient_errors(replica, images, labels, spans):
        raise BrokenContractError(f"not of the parameters {wrong}")
    return f"{len(spans)} layers"


def gradient_errors(replica: Replica, images: Array, labels: Array, spans: Sequence[slice]) -> list[slice]:
    """Return the spans of parameters along which the loss does not change as the gradient says (float64)."""
    kernels, wrong = replica.backend, list[slice]()

    def loss() -> float:
        replica.reseed(2)
        x, aims = kernels.asarray(images), kernels.asarray(labels)
        for stage in replica.stages:
            x = stage.forward(x)
        value, _, x = replica.loss(x, aims, 1.0)
        for head in replica.heads:
            head.aim(aims, 1.0)
        for stage in reversed(replica.stages):
            x = stage.backward(x)  # type: ignore[assignment] # None of the first stage
        return value + sum(head.value for head in replica.heads)

    loss()
    gradient, start = (kernels.to_host(vector).copy() for vector in (replica.gradients, replica.parameters))
    random = np.random.default_rng(3)
    for span in spans:
        direction = np.zeros_like(start)
        direction[span] = random.standard_normal(direction[span].size)
        direction *= 1e-6 / np.linalg.norm(direction)
        ends = []
        for parameters in (start + direction, start - direction):
            replica.parameters[...] = kernels.asarray(parameters)
            ends.append(loss())
        if not math.isclose((ends[0] - ends[1]) / 2, gradient @ direction, rel_tol=1e-4, abs_tol=1e-13):
            wrong.append(span)
    return wrong
