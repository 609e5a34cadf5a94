"""Contracts, checked on ranks of one process.

An aggregation scheme: sums, bits, deadlocks, stated costs. A training strategy: deadlocks, images, losses, steps.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any, Final, TypeAlias

import numpy as np

from hpcdl import suite
from hpcdl.aggregation.parts import cost
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.cases.simulation.operations import Operation
from hpcdl.exit_codes import UsageError
from hpcdl.fabric.comm import Array, Comm, Counters
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.task import Program
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.launch.preflight import Finding
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.journal import Journal
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
