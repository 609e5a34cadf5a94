"""Archives made of synthetic nights, without files."""

import datetime as dt

import numpy as np

from contract.nights import nights
from hpcdl.analysis.history import histories
from hpcdl.analysis.series import CaseSeries, RunSeries
from hpcdl.analysis.verdict_over_time import Judged

BEGIN = dt.datetime(2026, 1, 1, 1, tzinfo=dt.UTC)


def case(name, seconds, key="k"):
    return CaseSeries(
        "nightly", name, "{}", "collective", 4, 1 << 20, key, {"time_p50_seconds": seconds}, "", {}, {}
    )


def run(number, cases, **environment):
    date = (BEGIN + dt.timedelta(days=number)).isoformat()
    path = f"runs/{number:04d}"
    env = {"ranks": [{"hostname": f"h{rank}"} for rank in range(4)], **environment}
    return RunSeries(path, date, path, "nightly", True, env, {}, tuple(cases), {}, {}, 0)


def archive(series=200, runs=365, slower=(), seed=0, new_environment=None, name="allreduce"):
    """Return a judged history; ``slower``: (series, run, factor) of each step; another key from a run on."""
    logs = np.log(1e-3) + nights(np.random.default_rng(seed), series, runs)
    for row, begin, factor in slower:
        logs[row, begin:] += np.log(factor)
    keys = ["k" if new_environment is None or number < new_environment else "other" for number in range(runs)]
    made = [
        run(
            number,
            [case(f"{name} {row}", float(np.exp(logs[row, number])), keys[number]) for row in range(series)],
        )
        for number in range(runs)
    ]
    (found,) = histories(made)
    return Judged(found, (BEGIN + dt.timedelta(days=runs - 2)).isoformat())
