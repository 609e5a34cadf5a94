"""Run the trials of a suite alone, in this process: its cases then find them in their run folder."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from hpcdl.cases.keys.key import given
from hpcdl.cases.parts.rate_grid import TRIALS, best_of_grid
from hpcdl.cases.train import program
from hpcdl.exit_codes import INCONCLUSIVE, OK, UsageError
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.launch.mpirun import CLEAR
from hpcdl.nn.backend import computing
from hpcdl.suite import Case, Suite


def run_trials(suite: Suite, file: Path, show: Callable[[str], None]) -> int:
    """Run the trials that ``file`` does not hold, and ``show`` a line for each method; return the exit code.

    It is INCONCLUSIVE if a best one is at an edge of its grid. Raises UsageError for a suite without grids.
    """
    methods: dict[str, Case] = {}
    for case in suite.cases:
        if (tuning := case.setting("tune")) and tuning.grid:
            methods.setdefault(json.dumps(given(replace(case.spec, seed=0)), sort_keys=True), case)
    if not methods:
        raise UsageError(f"--trials: no case of the suite {suite.name!r} has a grid: tune with rates or batches")
    if damaged := TRIALS.keep(file):
        show(damaged)
    code, terminal = OK, sys.stdout.isatty()
    for number, case in enumerate(methods.values(), 1):
        spec = case.spec
        name = f"[{number}/{len(methods)}] {case.name.replace(f'-seed={spec.seed}', '')}"
        if terminal:
            print(f"{CLEAR}{name} ...", end="", flush=True)
        with computing(spec.kernels, spec.threads):
            ((_, record),) = in_process(1).run(
                partial(best_of_grid, spec, spec.tune, partial(program, tests=False))
            )
        line = f"{name}: {record['tuning_trials']}; best {record['tuned']}"
        if edge := record["tuning_edge"]:
            line, code = f"{line}, at an edge of its grid: {edge}", INCONCLUSIVE
        show(f"{CLEAR if terminal else ''}{line}")
    return code
