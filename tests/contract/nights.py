"""Synthetic nights: noise of several kinds with a deviation of 2 %, and a job effect of 1 % that all cases share."""

import itertools

import numpy as np

from hpcdl.analysis.network.links import host_slowness

NOISE, JOB, OUTLIERS, STATE = 0.02, 0.01, 0.03, 0.08


def _outliers(rng, shape):
    return np.where(rng.random(shape) < OUTLIERS, np.log(rng.uniform(1.1, 1.3, shape)), 0)


def _autoregressive(rng, shape, phi, deviation=NOISE):
    noise = rng.normal(0, deviation, shape)
    for run in range(1, shape[1]):
        noise[:, run] = phi * noise[:, run - 1] + np.sqrt(1 - phi**2) * noise[:, run]
    return noise


def _in_bursts(rng, shape):
    """Five nights each, 2 % of the nights begin one."""
    begin = np.pad(rng.random(shape) < 0.02, ((0, 0), (4, 0)))
    return np.lib.stride_tricks.sliding_window_view(begin, 5, axis=1).any(axis=2)


def _weekends(rng, shape):
    """Two of seven nights are slower, by 0 to 4 %, on other days in each series."""
    night = np.arange(shape[1]) + rng.integers(0, 7, (shape[0], 1))
    return rng.uniform(0, 0.04, (shape[0], 1)) * (night % 7 >= 5)


def _deviations(rng, shape):
    """Of each series another, which rises and falls by a factor of 2 within 40 nights."""
    cycle = np.arange(shape[1]) / 40 + rng.random((shape[0], 1))
    return np.exp(rng.normal(0, 0.7, (shape[0], 1)) + 0.7 * np.sin(2 * np.pi * cycle))


def _two_states(rng, shape, stay):
    """Two levels 8 % apart; a series keeps its level from one run to the next with the probability ``stay``."""
    state = (rng.random((shape[0], 1)) < 0.5) ^ (np.cumsum(rng.random(shape) > stay, axis=1) % 2 == 1)
    return np.log1p(STATE) * state + rng.normal(0, NOISE, shape)


def _sudden_variance(rng, shape):
    """A deviation three times as large from some night on, another one in each series."""
    later = np.arange(shape[1]) >= rng.integers(15, max(shape[1] - 5, 16), (shape[0], 1))
    return rng.normal(0, NOISE, shape) * np.where(later, 3, 1)


def _lognormal(rng, shape):
    """A long tail of slow nights, the deviation as of the others."""
    skewed = rng.lognormal(0, 1, shape)
    return np.log1p(NOISE * (skewed - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e))


KINDS = {
    "normal": lambda rng, shape: rng.normal(0, NOISE, shape),
    "outliers": lambda rng, shape: rng.normal(0, NOISE, shape) + _outliers(rng, shape),
    "t3": lambda rng, shape: rng.standard_t(3, shape) * NOISE / np.sqrt(3),
    "AR .3": lambda rng, shape: _autoregressive(rng, shape, 0.3),
    "AR .6": lambda rng, shape: _autoregressive(rng, shape, 0.6),
    "wandering": lambda rng, shape: _autoregressive(rng, shape, 0.95, 0.005),
    "bursts": lambda rng, shape: rng.normal(0, NOISE, shape) * np.where(_in_bursts(rng, shape), 3, 1),
    "weekly": lambda rng, shape: rng.normal(0, NOISE, shape) + _weekends(rng, shape),
    "heteroscedastic": lambda rng, shape: rng.normal(0, NOISE, shape) * _deviations(rng, shape),
    "sudden variance": _sudden_variance,
    "few values": lambda rng, shape: rng.normal(0, NOISE, shape),
    "lognormal": _lognormal,
    "random states": lambda rng, shape: _two_states(rng, shape, 0.8),
    "two states": lambda rng, shape: _two_states(rng, shape, 0.95),
}
"""Noise without a change; outliers are 3 % of all values, of +10 to +30 %."""


def nights(rng, series=200, runs=100, kind="outliers"):
    """(series, runs): logarithms of times without a change."""
    logs = KINDS[kind](rng, (series, runs)) + rng.normal(0, JOB, runs)
    if kind == "few values":  # whole ticks of a timer, 10 to 60 of each series
        logs = np.log(np.round(rng.uniform(10, 60, (series, 1)) * np.exp(logs)))
    return logs


def slow_links(rng, *, runs, onset=0, slow=(), hosts=8, per_run=8, slower=0.15):
    """Return by pair of hosts, "1 - 2", the logarithms of its link's slowness (runs,), NaN where one is absent.

    The links of ``slow`` are slower by a share from the run ``onset`` on.
    """
    pairs = list(itertools.combinations(range(hosts), 2))
    departures = rng.normal(0, NOISE, (len(pairs), runs)) + _outliers(rng, (len(pairs), runs))
    there = np.argsort(rng.random((runs, hosts)), axis=1).argsort(axis=1) < per_run
    for number, (one, other) in enumerate(pairs):
        name = f"{one} - {other}"
        departures[number, onset:] -= np.log(1 - slower) * (name in slow)
        departures[number, ~(there[:, one] & there[:, other])] = np.nan
    departures -= np.nanmedian(departures, axis=0)
    return {f"{one} - {other}": row for (one, other), row in zip(pairs, departures, strict=True)}


def slow_hosts(rng, slow=1, *, runs, onset, hosts=32, per_run=8, slower=0.15, spread=0.0, cases=12):
    """Nights with other hosts each; some hosts' links are slow by a share from the run ``onset`` on.

    ``slow``: number of slow hosts, or which; ``spread``: standard deviation of lasting differences between hosts;
    ``per_run``: number of hosts of each night, or its bounds.
    Returns the slow hosts; (hosts, runs) logarithms of each host's slowness, NaN where it takes no part; and
    (cases, runs) logarithms of the times of cases, which are those of the slowest host.
    """
    slow = rng.permutation(hosts)[:slow] if isinstance(slow, int) else np.asarray(slow)
    departures = np.full((hosts, runs), np.nan)
    times = nights(rng, cases, runs)
    usual = rng.normal(0, spread, hosts)
    for run in range(runs):
        count = per_run if isinstance(per_run, int) else rng.integers(per_run[0], per_run[1] + 1)
        here = rng.permutation(hosts)[:count]
        level = usual[here] - np.log(1 - slower) * (np.isin(here, slow) & (run >= onset))
        pairs = rng.normal(0, NOISE, (count, count)) + _outliers(rng, (count, count))
        pairs = np.triu(pairs, 1) + np.triu(pairs, 1).T + np.maximum(level[:, None], level)
        np.fill_diagonal(pairs, np.nan)
        times[:, run] += level.max()
        departures[here, run] = np.log(host_slowness(np.exp(pairs)))
    return {*slow.tolist()}, departures, times
