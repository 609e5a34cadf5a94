"""Archives made of synthetic nights, without files."""

import datetime as dt

import numpy as np

from contract.nights import nights
from hpcdl.analysis.over_time.series import CaseSeries, RunSeries, histories
from hpcdl.analysis.over_time.verdict import SuiteVerdict

BEGIN = dt.datetime(2026, 1, 1, 1, tzinfo=dt.UTC)


def case(
    name, seconds, key="k", *, measure="time_p50_seconds", failure="", settings="{}", suite="nightly", **more
):
    """A collective that takes so long (s), or has no value; ``more``: values of further measures."""
    values = more if seconds is None else {measure: seconds, **more}
    return CaseSeries(suite, name, settings, "collective", 4, 1 << 20, key, values, failure, {}, {})


def run(number, cases, *, job="", suite="nightly", complete=True, without_result=(), disturbed=(), **environment):
    """A run of a night by its number; ``without_result``: (case, reason) of each; ``disturbed``: names of cases."""
    date, path = (BEGIN + dt.timedelta(days=number)).isoformat(), f"runs/{number:04d}"
    env = {"ranks": [{"hostname": f"h{rank}"} for rank in range(4)], **environment}
    others = dict(without_result), dict.fromkeys(disturbed, "other processes")
    return RunSeries(path, date, job or path, suite, complete, env, {}, tuple(cases), *others, 0)


def archive(series=200, runs=365, slower=(), seed=0, kind="outliers", hosts=4, **options) -> SuiteVerdict:
    """Return the verdict on synthetic nights, as :func:`archive_of` does with further ``options``.

    ``slower``: (series, run, factor) of each step; ``kind``: of noise; ``hosts``: of which each night has four.
    """
    rng = np.random.default_rng(seed)
    logs = nights(rng, series, runs, kind)
    for row, begin, factor in slower:
        logs[row, begin:] += np.log(factor)
    here = [[f"h{host}" for host in rng.permutation(hosts)[:4]] for _ in range(runs)]
    return archive_of(logs, here, **options)


def archive_of(logs, hosts=None, new_environment=None, name="allreduce", accepted=()) -> SuiteVerdict:
    """Return the verdict on nights of ``logs`` (series, nights), NaN if missing.

    ``hosts``: names for each night; ``new_environment``: run from which the key is another.
    """
    made = []
    for number, night in enumerate(logs.T):
        key = "k" if new_environment is None or number < new_environment else "other"
        here = {} if hosts is None else {"ranks": [{"hostname": host} for host in hosts[number]]}
        times = {row: float(np.exp(log)) / 1000 for row, log in enumerate(night) if np.isfinite(log)}
        made.append(run(number, [case(f"{name} {row}", time, key) for row, time in times.items()], **here))
    (found,) = histories(made)
    return SuiteVerdict(found, accepted, today=BEGIN.date())
