"""Synthetic nights: 2 % noise, 3 % outliers of +10 to +30 %, and a job effect of 1 % that all cases of a night share."""

import numpy as np

from hpcdl.analysis.links import host_slowness

NOISE, JOB, OUTLIERS = 0.02, 0.01, 0.03


def _outliers(rng, shape):
    return np.where(rng.random(shape) < OUTLIERS, np.log(rng.uniform(1.1, 1.3, shape)), 0)


def nights(rng, series=200, runs=100):
    """(series, runs): logarithms of times without a change."""
    noise = rng.normal(0, NOISE, (series, runs)) + rng.normal(0, JOB, runs)
    return noise + _outliers(rng, (series, runs))


def slow_host(rng, *, runs, onset, hosts=32, per_run=8, slower=0.15, cases=12):
    """Nights with other hosts each; one host's link is slow by a share from the run ``onset`` on.

    Returns the slow host; (hosts, runs) logarithms of each host's median time of exchanges by the usual host's, NaN where
    it takes no part; and (cases, runs) logarithms of the times of cases, which are those of the slowest host.
    """
    slow, step = int(rng.integers(hosts)), -np.log(1 - slower)
    departures = np.full((hosts, runs), np.nan)
    times = nights(rng, cases, runs)
    for run in range(runs):
        here = rng.permutation(hosts)[:per_run]
        pairs = rng.normal(0, NOISE, (per_run, per_run)) + _outliers(rng, (per_run, per_run))
        pairs = np.triu(pairs, 1) + np.triu(pairs, 1).T
        if run >= onset and slow in here:
            place = list(here).index(slow)
            pairs[place] += step
            pairs[:, place] += step
            times[:, run] += step
        np.fill_diagonal(pairs, np.nan)
        departures[here, run] = np.log(host_slowness(np.exp(pairs)))
    return slow, departures, times
