"""False findings, power and delay of `hpcdl history` on synthetic nights, and how often it names the right hosts.

    python tests/analysis/history_figures.py [HISTORIES [WITHOUT]]

The numbers in hpcdl/analysis/over_time/change_points.py, explanations.py and suspects.py were chosen by it with seeds below 1000; the figures are
of other seeds. WITHOUT leaves out a part of the method, to show what it is good for: correlation, null (the empirical null),
clipping, or job-effects.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from contract.archives import archive, case, run
from contract.nights import KINDS, nights, slow_hosts

from hpcdl.analysis.over_time import change_points as module
from hpcdl.analysis.over_time.change_points import change_points
from hpcdl.analysis.over_time.history import histories
from hpcdl.analysis.over_time.suspects import by_times, shared_departures, suspects

SEED = 1000
AFTER = 12
POWERFUL = ("normal", "outliers", "t3", "AR .3")
WITHOUT = {
    "correlation": lambda: setattr(module, "autocorrelation", lambda values: 0.0),
    "null": lambda: setattr(module._Search, "_excess", lambda self, student, allowed: 1.0),
    "clipping": lambda: setattr(module, "CLIPPED", 1e9),
    "job-effects": lambda: setattr(module, "without_job_effects", np.copy),
}


def false_findings(histories, kind):
    """Print the findings of every rule in 100 nights of 200 series without a change, four of 16 hosts each."""
    counts = []
    for seed in range(histories):
        found = archive(runs=100, seed=SEED + seed, kind=kind, hosts=16)
        events, suspects = found.findings.events, found.findings.suspects
        slower = sum(event.ratio > 1 for event in events)
        counts.append((len(events) + len(suspects), slower, len(suspects)))
    every, slower, suspects = np.mean(counts, axis=0)
    print(
        f"{kind}: no change, 200 series, 100 nights, {histories} histories: {every:.2f} false findings, of them "
        f"{slower:.2f} slower, {suspects:.2f} hosts",
        flush=True,
    )


def delays(histories, kind, together):
    """One of 200 series shifts by 5 % at each of some nights, or ``together`` series shift at one night."""
    found = []
    for seed in range(histories):
        logs = nights(np.random.default_rng(SEED + 500 + seed), runs=60 + 18 * 5 + AFTER, kind=kind)
        steps = [(60 + 5 * place, [place]) for place in range(18)] if together == 1 else [(60, [*range(together)])]
        for begin, rows in steps:
            logs[rows, begin:] += np.log(1.05)
        changes = [change for change in change_points(logs) if change.ratio.value > 1]
        for begin, rows in steps:
            mine = [one.found - begin + 1 for one in changes if one.series in rows and one.found >= begin]
            found.append(min(mine, default=np.inf))
    found = np.array(found)
    print(
        f"{kind}: +5 % in {together} of 200 series after 60 to 145 nights, {len(found)} shifts: "
        f"{np.mean(found <= AFTER):.3f} found within 12 runs, median {np.median(found):g}",
        flush=True,
    )


def host_history(departures, times, *, by_links):
    """Return the history of nights in which hosts r0n0 to r0n15, r1n0, ... took part."""
    runs = []
    for night in range(departures.shape[1]):
        here = {
            f"r{host // 16}n{host % 16}": one for host, one in enumerate(departures[:, night]) if np.isfinite(one)
        }
        cases = [case(f"case {number}", float(np.exp(one))) for number, one in enumerate(times[:, night])]
        if by_links:
            cases.append(
                replace(case("pairs", 1.0), host_slowness={name: np.exp(one) for name, one in here.items()})
            )
        ranks = [{"hostname": name} for name in here]
        runs.append(run(night, [replace(one, ranks=len(ranks)) for one in cases], ranks=ranks))
    (found,) = histories(runs)
    return found


def hosts(number, title, slow, *, by_links=True, slower=0.15, spread=0.0, pool=32):
    """Print how often all slow hosts are named within 60 nights, as one group if they are many, and how often others."""
    right, wrong = [], []
    for seed in range(number):
        rng = np.random.default_rng(SEED + seed)
        indices, departures, times = slow_hosts(
            rng, slow, runs=70, onset=10, slower=slower, spread=spread, hosts=pool, per_run=min(pool, 8)
        )
        expected = {f"r{host // 16}n{host % 16}" for host in indices}
        found = suspects(host_history(departures, times, by_links=by_links), {})
        named = [{*re.findall(r"r\d+n\d+", one.name)} for one in found]
        groups = 1 if len(expected) > 2 else len(expected)
        right.append(set().union(*named) >= expected and sum(one.ended is None for one in found) == groups)
        wrong.append(bool(set().union(*named) - expected))
    print(
        f"{title}, {pool} hosts, {min(pool, 8)} a night, by {'links' if by_links else 'times of cases'}, {number} "
        f"histories: named as such {np.mean(right):.2f}, another one {np.mean(wrong):.2f}",
        flush=True,
    )


def hosts_by_times(number, title, slow, *, bad=0.0, slower=0.2):
    """Print how often slow hosts of 24 are named within 20 nights, and others in 100, each of 4 to 12 hosts."""
    right, wrong = [], []
    for seed in range(number):
        rng = np.random.default_rng(SEED + seed)
        indices, departures, times = slow_hosts(
            rng, slow, runs=100, onset=40, slower=slower, hosts=24, per_run=(4, 12)
        )
        times += np.where(rng.random(100) < bad, np.log(rng.uniform(1.1, 1.4, 100)), 0)
        named = by_times(shared_departures(times), np.isfinite(departures), [str(host) for host in range(24)])
        named = {int(one.name): one.found for one in named if one.kind == "host"}
        right += [named.get(host, np.inf) < 60 for host in indices]
        wrong.append(bool(named.keys() - indices))
    early = f"named within 20 nights {np.mean(right):.2f}, " if right else ""
    print(f"{title}, by times of cases, {number} histories: {early}another one {np.mean(wrong):.2f}", flush=True)


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    for part in sys.argv[2:]:
        WITHOUT[part]()
    if not sys.argv[2:]:
        for by_links in (True, False):
            hosts(number, "one slow host", 1, by_links=by_links)
            hosts(number, "two slow hosts", 2, by_links=by_links)
            hosts(number, "half of a switch", [*range(8)], by_links=by_links)
        hosts_by_times(number, "one of 24 hosts at 80 % of the speed", 1)
        hosts_by_times(number, "two of 24", 2)
        hosts_by_times(number, "two of 24, and 5 % of the nights slow for all", 2, bad=0.05)
        hosts_by_times(number, "half a switch, 6 of 24", [*range(6)])
        hosts_by_times(number, "none slow, and 5 % of the nights slow for all", 0, bad=0.05)
        for pool in (4, 8, 16, 32):
            hosts(number, "ordinary spread of 3 %", [], spread=0.03, pool=pool)
            hosts(number, "one host 25 % slower than a spread of 3 %", 1, slower=0.2, spread=0.03, pool=pool)
    for kind in KINDS:
        false_findings(number, kind)
        if kind in POWERFUL:
            delays(max(number // 4, 2), kind, 1)
    delays(number, "outliers", 10)
