"""False alarms, power and delay of `hpcdl history` on synthetic nights, and how often it names the right host.

    python tests/analysis/history_figures.py [HISTORIES]

The numbers in hpcdl/analysis/likelihood_ratio.py and culprits.py were chosen by it; seeds 1000 and up chose nothing.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from contract.nights import nights, slow_host

from hpcdl.analysis.change_points import change_points
from hpcdl.analysis.culprits import culprits, evidence, shared_departures
from hpcdl.analysis.suspects import TRANSIENT

SEED = 1000
AFTER = 12


def false_findings(histories):
    events, regressions, firsts = [], [], []
    for seed in range(histories):
        found = change_points(nights(np.random.default_rng(SEED + seed)))
        events.append(len({(one.found, one.ratio.value > 1) for one in found}))
        regressions.append(len({one.found for one in found if one.ratio.value > 1}))
        firsts.append(len({one.series for one in found}))
    print(
        f"no change, 200 series, 100 nights, {histories} histories: {np.mean(regressions):.2f} false regressions, "
        f"{np.mean(events):.2f} false findings, {np.mean(firsts):.2f} without returns to the earlier level",
        flush=True,
    )


def delays(histories, together):
    """One of 200 series shifts by 5 % at each of some nights, or ``together`` series shift at one night."""
    found = []
    for seed in range(histories):
        logs = nights(np.random.default_rng(SEED + 500 + seed), runs=30 + 18 * 5 + AFTER)
        steps = [(30 + 5 * place, [place]) for place in range(18)] if together == 1 else [(60, [*range(together)])]
        for begin, rows in steps:
            logs[rows, begin:] += np.log(1.05)
        changes = [one for one in change_points(logs) if one.ratio.value > 1]
        for begin, rows in steps:
            mine = [one.found - begin + 1 for one in changes if one.series in rows and one.found >= begin]
            found.append(min(mine, default=np.inf))
    found = np.array(found)
    print(
        f"+5 % in {together} of 200 series, {len(found)} shifts: {np.mean(found <= AFTER):.3f} found within 12 runs, "
        f"median {np.median(found):g}, within 4 runs {np.mean(found <= 4):.2f}",
        flush=True,
    )


def hosts(histories, by_links):
    taken, since, wrong = [], [], 0
    for seed in range(histories):
        onset = 10
        slow, departures, times = slow_host(np.random.default_rng(SEED + seed), runs=60, onset=onset)
        if by_links:
            found = culprits(evidence(departures, TRANSIENT), departures)
        else:
            departures = np.where(np.isfinite(departures), shared_departures(times), np.nan)
            found = culprits(evidence(departures), departures)
        first = onset + int(np.flatnonzero(np.isfinite(departures[slow, onset:]))[0])
        right = [one.found for one in found if one.suspect == slow and one.found >= onset]
        wrong += any(one.suspect != slow or one.found < onset for one in found)
        taken.append(min(right, default=np.inf) - first + 1)
        since.append(min(right, default=np.inf) - onset + 1)
    taken, since = np.array(taken), np.array(since)
    print(
        f"32 hosts, 8 a night, one 15 % slow, by {'link measurements' if by_links else 'times of cases'}, {histories} "
        f"histories: named within 10 nights of its first slow run {np.mean(taken <= 10):.2f}, of the onset "
        f"{np.mean(since <= 10):.2f}, within 20 of the onset {np.mean(since <= 20):.2f}; wrong {wrong / histories:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    hosts(100, by_links=True)
    hosts(100, by_links=False)
    delays(max(number // 4, 5), 1)
    delays(number, 10)
    false_findings(number)
