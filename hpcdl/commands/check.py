"""``hpcdl check``: check this machine before a run, or a scheme, strategy, compressor or model."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.options import CONTRACTS, Arguments, Command, objects_with_a_contract
from hpcdl.exit_codes import FAILED, OK, refused

if TYPE_CHECKING:
    from hpcdl.launch.preflight import Finding


def arguments(parser: Arguments) -> None:
    effect = "a name, or MODULE:OBJECT of your own; MODULE may be in the current folder"
    parser.option("name NAME", effect, objects_with_a_contract, nargs="?")


def execute(options: argparse.Namespace) -> int:
    failed = False
    with refused("check: "):
        for verdict, subject, detail, advice in _machine() if options.name is None else _contract(options.name):
            print(f"{verdict:7}  {subject}: {detail}{advice and '; '}{advice}", flush=True)
            failed |= verdict == "FAILED"
    return FAILED if failed else OK


def _machine() -> Iterable[Finding]:
    import os

    from hpcdl.launch.preflight import preflight, preflight_of_job
    from hpcdl.launch.process import check_leftover, launched

    check_leftover(os.environ)
    return preflight_of_job() if launched(os.environ) else preflight()


def _contract(name: str) -> Iterator[Finding]:
    """Return the checks of an object; the kind of a user's object follows from its signature."""
    import inspect
    from pathlib import Path

    from hpcdl import registry
    from hpcdl.aggregation.parts.traits import Aggregation
    from hpcdl.commands.parts.contracts import check_compressor, check_model, check_scheme, check_strategy
    from hpcdl.compression.parts.protocol import Compression
    from hpcdl.training.parts.traits import Strategy

    registry.trust(name, Path.cwd())
    folder = next((folder for folder in CONTRACTS if name in registry.names(folder)), "models")
    if ":" not in name and name not in registry.names(folder):
        raise ValueError(f"unknown {name!r}{registry.nearest(name, objects_with_a_contract())}")
    thing = registry.find(folder, name)
    if inspect.isclass(thing):
        return check_compressor(thing, registry.traits("compression", name, Compression))
    if not inspect.iscoroutinefunction(thing):
        return check_model(name)
    if "session" in inspect.signature(thing).parameters:
        return check_strategy(name, registry.traits("training", name, Strategy))
    return check_scheme(thing, registry.traits("aggregation", name, Aggregation))


COMMAND: Final = Command(
    50,
    "check this machine, or a scheme, strategy, compressor or model of your own",
    "Check this machine before a run: MPI, launcher, transports, cores, clocks, disk, GPU; under mpirun or srun "
    "all hosts of the job. Exit code 1: a check failed; a warning gives 0. With NAME, check that an "
    "aggregation scheme computes exact sums, without deadlock, at the cost that its docstring states, that a "
    "training strategy trains without deadlock, with each image once, that a compressor loses nothing and sends "
    "the bytes that it states, or that a model has the gradients of its loss.",
    "hpcdl check; mpirun -n 4 hpcdl check",
)
