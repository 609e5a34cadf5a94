"""``hpcdl check``: check this machine before a run, or check an aggregation scheme or a training strategy."""

import argparse
from typing import Final

from hpcdl.commands.parts.parser import Command, complete, schemes_and_strategies
from hpcdl.exit_codes import FAILED, OK, UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    name = parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="a name, or MODULE:FUNCTION of your own; MODULE may be in the current folder",
    )
    complete(name, schemes_and_strategies)


def execute(options: argparse.Namespace) -> int:
    return _machine() if options.name is None else _contract(options.name)


def _machine() -> int:
    import os

    from hpcdl.launch.preflight import preflight, preflight_of_job
    from hpcdl.launch.process import check_leftover, launched

    check_leftover(os.environ)
    findings = preflight_of_job() if launched(os.environ) else preflight()
    failed = False
    for finding in findings:
        advice = f"; {finding.advice}" if finding.advice else ""
        print(f"{finding.verdict:7}  {finding.subject}: {finding.detail}{advice}", flush=True)
        failed |= finding.verdict == "FAILED"
    return FAILED if failed else OK


def _contract(name: str) -> int:
    import inspect
    from pathlib import Path

    from hpcdl import registry
    from hpcdl.aggregation.parts.traits import Aggregation
    from hpcdl.commands.parts.contracts import check_scheme, check_strategy
    from hpcdl.training.parts.traits import Strategy

    registry.trust(name, Path.cwd())
    kind = "training" if name in registry.names("training") else "aggregation"
    failed = False
    try:
        found = registry.find(kind, name)
        if "session" in inspect.signature(found).parameters:
            checks = check_strategy(name, registry.traits("training", name, Strategy))
        else:
            checks = check_scheme(found, registry.traits("aggregation", name, Aggregation))
        for check in checks:
            print(f"{'ok' if check.holds else 'FAILED':7}  {check.what}: {check.detail}", flush=True)
            failed |= not check.holds
    except ValueError as error:
        raise UsageError(f"check: {error}") from None
    return FAILED if failed else OK


COMMAND: Final = Command(
    50,
    "check this machine, or a scheme or strategy of your own",
    "Check this machine before a run: MPI, launcher, transports, cores, clocks, disk, GPU; under mpirun or srun "
    "all hosts of the job. Exit code 1: a check failed; a warning gives 0. With NAME, check that an "
    "aggregation scheme computes exact sums, without deadlock, at the cost that its docstring states, or that a "
    "training strategy trains without deadlock, with each image once.",
    arguments,
    execute,
    "hpcdl check; mpirun -n 4 hpcdl check",
)
