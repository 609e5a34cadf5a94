"""Aggregation and compression of a case: traits, trials before the run, plan, exchange, and record."""

from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from hpcdl import registry
from hpcdl.aggregation.parts import traits
from hpcdl.aggregation.parts.traits import offered, operand
from hpcdl.cases.keys.key import Choice
from hpcdl.compression.parts.protocol import Compression, Layout
from hpcdl.fabric.comm import Comm
from hpcdl.fabric.device.transport import nccl_library
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import simulated
from hpcdl.nn.replica import Tensor
from hpcdl.trace.files import read_toml
from hpcdl.trace.recorder import Scalar
from hpcdl.training.parts.compressed import Compressed
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.plan import ExchangeSettings, Plan, kind_of
from hpcdl.training.parts.session import Session


async def compression_fields(comm: Comm, session: Session, sent_bytes: int, warmup: int) -> dict[str, Scalar]:
    """Return the record's fields of the compression; empty without one. Collective.

    ``sent_bytes``: sent by this rank in all steps. ``warmup``: first steps whose times are not counted.
    """
    compressed, journal = session.compressed, session.journal
    if compressed is None:
        return {}
    comm = await comm.survivors()
    both = np.array(_ring_and_sent(session, compressed, comm.size, sent_bytes))
    await comm.native("allreduce", both)
    if comm.rank:
        return {}  # rank 0's fields are recorded
    first = max(0, min(warmup + compressed.plan.settings.warmup_steps, journal.steps - 1))
    bits = compressed.messages.bits_per_entry() if compressed.messages else None
    ring, sent = both.tolist()
    return {
        "residual_bytes": compressed.memory_bytes,
        **(dict(zip(("bits_per_entry", "entropy_bits_per_entry"), bits, strict=True)) if bits else {}),
        "compression_ratio": ring / sent if ring and sent > 0 else None,
        "ring_bytes": round(ring),
        **{f"{label}_seconds": _seconds(journal, label, first) for label in ("encode", "decode")},
    }


def _ring_and_sent(session: Session, compressed: Compressed, ranks: int, sent_bytes: int) -> tuple[float, float]:
    """Return this rank's part of the bytes of an uncompressed ring, and the bytes that it sent; 0 if unknown.

    The ring sums the whole gradient in every step, also if the strategy exchanges every few steps or without sums.
    The parts of the ranks are in proportion to their images. Dense first exchanges and their steps do not count.
    The bytes of a library's collectives are not counted, nor those of gradients among the activations of a model
    group: both numbers are then those of the vectors' lengths; messages, which vary, have none.
    """
    plan, itemsize = compressed.plan, session.replica.gradients.itemsize
    counted = not (plan.aggregation.native or plan.aggregation.adaptive) and session.group is None
    if not counted and plan.kind != "vectors":
        return 0.0, 0.0
    gradient = lengths = 0.0  # bytes of a step, and of the vectors of all steps
    for (start, stop), exchanges in compressed.exchanges.items():
        later = max(0, exchanges - plan.settings.warmup_steps)
        gradient += (stop - start) * itemsize * later / exchanges
        if not counted:
            vectors = compressed.compressor.lengths(slice(start, stop))
            lengths += later * sum(size * np.dtype(kind).itemsize for size, kind in vectors)
    if not counted:
        return session.journal.steps * gradient, lengths
    steps = float(session.journal.recorder.step_table()["images"].sum()) / session.global_batch
    return steps * 2 * (ranks - 1) * gradient, sent_bytes - compressed.warmup_bytes


def _seconds(journal: Journal, label: str, first: int) -> float | None:
    """Return the seconds per step of this rank in work with this label; None unless all of it was traced.

    Compressors are compiled in their first step, which is not counted, nor are the steps before it.
    """
    events = journal.events_from(first)
    if events is None:
        return None
    spent = sum(end - begin for _, of, begin, end, _, _ in events if of == label)
    return spent / 1e9 / (journal.steps - first)


MAX_TRIED: Final = 32
"""Ranks up to which an aggregation is tried: about 10 ms for a ring."""


def traits_of(aggregation: Choice) -> traits.Aggregation:
    """Return the traits of a scheme with its settings. Raises ValueError for an unknown one."""
    return traits.traits_of(aggregation.name, aggregation.settings)


def check_library(aggregation: Choice, network: str | None = None) -> None:
    """Raise ValueError if a scheme that sums on GPUs lacks its library, or ``auto`` has an unusable table."""
    if traits_of(aggregation).memory == "device":
        nccl_library()
    if table_of(aggregation, 1) and network:
        raise ValueError("table: was measured; leave it out of a simulated case")


def table_of(aggregation: Choice, ranks: int) -> dict[int, str] | None:
    """Return the schemes of a table by the bytes from which on they are used; None if no table is given.

    The rows are those of the most ranks up to ``ranks``, or else of the fewest. Raises ValueError.
    """
    path = aggregation.settings.get("table") if traits_of(aggregation).adaptive else None
    if path is None:
        return None
    try:
        rules = read_toml(Path(path))["rule"]
        given = min((rule["ranks"] for rule in rules), key=lambda number: (number > ranks, abs(ranks - number)))
        table = {int(rule["from_bytes"]): str(rule["aggregation"]) for rule in rules if rule["ranks"] == given}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"table: {path} is no table of hpcdl tune ({error})") from None
    for name in table.values():
        if not registry.traits("aggregation", name.partition(":")[0], traits.Aggregation).autotuned:
            raise ValueError(f"table: {path}: {name!r} is not a scheme that auto chooses from")
    return table


def try_out(aggregation: Choice, ranks: int, collective: str = "allreduce") -> None:
    """Simulate a collective of a short vector, if that is quick, to raise the ValueError that the run would.

    A user's own is not called before the run, whatever else it does. Schemes of the device's memory cannot be
    simulated, sparse ones sum no whole vectors, and more ranks take long.
    """
    traits = traits_of(aggregation)
    if ":" in aggregation.name or traits.memory == "device" or traits.sparse or ranks > MAX_TRIED:
        return
    run = partial(offered(collective, aggregation.name), **aggregation.settings)
    payload = operand(collective, phantom(ranks), ranks)
    simulated(ranks, next(iter(NETWORKS.values()))).run(lambda comm: run(comm, payload))


SAMPLE_LAYOUT: Final = Layout(
    size=6, tensors=(Tensor("fc.weight", 0, (2, 2), decay=True), Tensor("fc.bias", 4, (2,), decay=False))
)
"""Layout on which a compressor is made before the run, to raise the ValueError of its settings."""


def try_compressor(compression: Choice, plan: Plan | None) -> None:
    """Raise ValueError for settings of a compression that are out of range; a user's own is not made."""
    if plan is None:
        if compression.settings:
            raise ValueError(f"{NONE!r} has no setting {next(iter(compression.settings))!r}")
        return
    if plan.settings.warmup_steps < 0:
        raise ValueError(f"warmup_steps: must be at least 0, not {plan.settings.warmup_steps}")
    plan.make_code()
    if ":" not in compression.name:
        plan.make(SAMPLE_LAYOUT)


def check_lengths(plan: Plan) -> None:
    """Raise ValueError if lengths of messages depend on the values of the gradient, which simulations lack."""
    if plan.kind != "vectors" and plan.make(SAMPLE_LAYOUT).expected(slice(0, SAMPLE_LAYOUT.size)) is None:
        raise ValueError("message lengths depend on the gradient, which a simulation lacks")


NONE: Final = "none"


def plan(compression: Choice, aggregation: Choice) -> Plan | None:
    """Return the plan of a case; None without compression. Raises ValueError for an unknown compressor."""
    if compression.name == NONE:
        return None
    own, common = compression.split(ExchangeSettings)
    compressor = compression.find()
    return Plan(
        make=partial(compressor, **own),
        kind=kind_of(compressor),
        traits=registry.traits("compression", compression.name, Compression),
        settings=ExchangeSettings(**common),
        scheme=aggregation.find(),
        scheme_settings=aggregation.settings,
        aggregation=traits_of(aggregation),
    )
