"""False findings, power and delay of `hpcdl history` on synthetic nights, and how often it names the right hosts.

    python tests/analysis/history_figures.py [HISTORIES [SERIES [KIND ...]]]

history_figures.txt has what it prints for 4 histories of 200 series with noise of every kind.
The numbers in hpcdl/analysis/over_time/change_points.py and suspects.py were chosen with other seeds. Public archives are
searched in reports/oracles/change_points.py.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from contract.archives import archive, case, run
from contract.nights import KINDS, nights, slow_hosts, slow_links

from hpcdl.analysis.over_time.change_points import change_points
from hpcdl.analysis.over_time.series import histories
from hpcdl.analysis.over_time.suspects import by_departures, suspects
from hpcdl.report.formats.verdicts import exit_code
from hpcdl.report.history import verdicts

SEED = 20000
AFTER = 12
POWERFUL = ("normal", "outliers", "t3", "AR .3", "weekly")


def false_findings(histories, kind, series):
    """Print the findings of every rule in 100 nights of series without a change, four of 16 hosts each."""
    counts = []
    for seed in range(histories):
        verdict = archive(series, runs=100, seed=SEED + seed, kind=kind, hosts=16)
        slower, named = sum(event.is_slower for event in verdict.events), len(verdict.suspects)
        counts.append((len(verdict.events) + named, slower, named))
    every, slower, suspects = np.mean(counts, axis=0)
    print(
        f"{kind}: no change, {series} series, 100 nights, {histories} histories: {every:.2f} false findings, of them "
        f"{slower:.2f} slower, {suspects:.2f} hosts",
        flush=True,
    )


def long_archives(histories, series):
    """Print the findings in five nights for each of the series, which have no change."""
    runs = 5 * series
    counts = [
        len({change.found for change in change_points(nights(np.random.default_rng(SEED + seed), series, runs))})
        for seed in range(histories)
    ]
    print(f"outliers: no change, {series} series, {runs} nights: {np.mean(counts):.1f} false findings", flush=True)


def returns(histories, repaired, kind):
    """One of 20 series takes twice as long for 12 nights, is repaired for some, and takes twice as long for good."""
    red = []
    for seed in range(histories):
        logs = nights(np.random.default_rng(SEED + seed), series=20, runs=162 + repaired, kind=kind)
        logs[0, 60:72] += np.log(2)
        logs[0, 72 + repaired :] += np.log(2)
        for later in (10, 40, 90):
            changes = change_points(logs[:, : 72 + repaired + later])
            red.append(any(change.open and change.series == 0 for change in changes))
    shares = ", ".join(f"{share:.2f}" for share in np.reshape(red, (-1, 3)).mean(axis=0))
    print(
        f"{kind}: twice as long for 12 nights, repaired for {repaired}, twice as long for good: open after 10, 40 and "
        f"90 nights in {shares} of {histories} histories",
        flush=True,
    )


def exit_codes(histories, kind, series):
    """Print the share of nights, of six in each history of up to 100 without a change, with each exit code."""
    codes = []
    for seed in range(histories):
        nights = np.random.default_rng(seed).integers(13, 101, 6)
        archives = (archive(series, night, seed=SEED + 900 + seed, kind=kind) for night in nights)
        codes += [exit_code(verdicts(suite)) for suite in archives]
    shares = ", ".join(f"{code}: {codes.count(code) / len(codes):.3f}" for code in (0, 1, 3))
    print(f"{kind}: no change, {series} series, {len(codes)} nights: exit codes {shares}", flush=True)


def delays(histories, kind, together, series):
    """One of the series shifts by 5 % at each of some nights, or ``together`` series shift at one night."""
    found = []
    for seed in range(histories):
        logs = nights(np.random.default_rng(SEED + 500 + seed), series, 60 + 18 * 5 + AFTER, kind)
        steps = [(60 + 5 * place, [place]) for place in range(18)] if together == 1 else [(60, [*range(together)])]
        for begin, rows in steps:
            logs[rows, begin:] += np.log(1.05)
        changes = [change for change in change_points(logs) if change.ratio.value > 1]
        for begin, rows in steps:
            mine = [one.found - begin + 1 for one in changes if one.series in rows and one.found >= begin]
            found.append(min(mine, default=np.inf))
    found = np.array(found)
    print(
        f"{kind}: +5 % in {together} of {series} series after 60 to 145 nights, {len(found)} shifts: "
        f"{np.mean(found <= AFTER):.3f} found within 12 runs, median {np.median(found):g}",
        flush=True,
    )


def large_steps(histories, kind, series):
    """One of 5 or of all series takes 1.5 times as long for the last five of 45 nights."""
    missed = 0
    for seed in range(histories):
        rng = np.random.default_rng(SEED + seed)
        logs = nights(rng, series=(5, series)[seed % 2], runs=45, kind=kind)
        row = int(rng.integers(len(logs)))
        logs[row, 40:] += np.log(1.5)
        missed += not any(
            one.series == row and one.found >= 40 and one.ratio.value > 1 for one in change_points(logs)
        )
    print(f"{kind}: x1.5 for five nights: found in {histories - missed} of {histories} histories", flush=True)


def host_history(departures, times, *, by_links):
    """Return the history of nights in which hosts r0n0 to r0n15, r1n0, ... took part."""
    runs = []
    for night in range(departures.shape[1]):
        present = np.flatnonzero(np.isfinite(departures[:, night]))
        here = {f"r{host // 16}n{host % 16}": np.exp(departures[host, night]) for host in present}
        cases = [case(f"case {number}", float(np.exp(one))) for number, one in enumerate(times[:, night])]
        if by_links:
            cases.append(replace(case("pairs", 1.0), host_slowness=here))
        ranks = [{"hostname": name} for name in here]
        runs.append(run(night, [replace(one, ranks=len(ranks)) for one in cases], ranks=ranks))
    (found,) = histories(runs)
    return found


def expanded(names):
    """Yield the hosts in a text that has them as Slurm lists them."""
    for before, numbers in re.findall(r"(r\d+n)(\d+|\[.*?\])", names):
        for part in numbers.strip("[]").split(","):
            first, _, last = part.partition("-")
            yield from (f"{before}{number}" for number in range(int(first), int(last or first) + 1))


def hosts(number, title, slow, *, by_links=True, slower=0.15, spread=0.0, pool=32):
    """Print how often all slow hosts are named within 60 nights, as one group if they are many, and how often others."""
    right, wrong, shares = [], [], []
    for seed in range(number):
        rng = np.random.default_rng(SEED + seed)
        indices, departures, times = slow_hosts(
            rng, slow, runs=70, onset=10, slower=slower, spread=spread, hosts=pool, per_run=min(pool, 8)
        )
        expected = {f"r{host // 16}n{host % 16}" for host in indices}
        found = suspects(host_history(departures, times, by_links=by_links), {})
        named = [set(expanded(one.name)) for one in found]
        groups = 1 if len(expected) > 2 else len(expected)
        right.append(set().union(*named) >= expected and sum(one.ended is None for one in found) == groups)
        wrong.append(bool(set().union(*named) - expected))
        shares.append(len(set().union(*named) & expected) / max(1, len(expected)))
    print(
        f"{title}, {pool} hosts, {min(pool, 8)} a night, by {'links' if by_links else 'times of cases'}, {number} "
        f"histories: named as such {np.mean(right):.2f}, another one {np.mean(wrong):.2f}"
        + (f", {np.mean(shares):.2f} of the slow hosts" if expected else ""),
        flush=True,
    )


def links(number, per_run, hosts=16):
    """Print how often a link is named in 100 nights without a slow one, and the slow one in 60 nights."""
    wrong, right, others, visits = [], [], [], []
    for seed in range(number):
        rng = np.random.default_rng(SEED + seed)
        wrong.append(bool(by_departures(slow_links(rng, runs=100, hosts=hosts, per_run=per_run), "link")))
        departures = slow_links(rng, runs=80, onset=20, slow=["1 - 2"], hosts=hosts, per_run=per_run)
        found = by_departures(departures, "link")
        mine = [one for one in found if one.name == "1 - 2"]
        right.append(bool(mine))
        others.append(len(found) > len(mine))
        visits += [np.isfinite(departures[one.name][20 : one.found + 1]).sum() for one in mine]
    print(
        f"links, {hosts} hosts, {per_run} a night, {number} histories: a link named without a slow one in 100 nights "
        f"{np.mean(wrong):.2f}; one 15 % slower named {np.mean(right):.2f}, another one {np.mean(others):.2f}, "
        f"after {np.median(visits):g} runs with it",
        flush=True,
    )


def main(number=50, series=200, kinds=tuple(KINDS)):
    """Print all figures of so many histories; of single changes, whose histories have many, of fewer."""
    few = max(number // 4, min(number, 2))
    print("noise 2 %, outliers 3 % of the values; the links of a slow host are 15 % slower", flush=True)
    for kind in kinds:
        false_findings(number, kind, series)
        large_steps(4 * number, kind, series)
        if kind in POWERFUL:
            exit_codes(4 * number, kind, series)
            delays(few, kind, 1, series)
    delays(number, "outliers", 10, series)
    delays(few, "lognormal", 1, series)
    long_archives(few, series)
    for repaired in (12, 25, 40, 80):
        returns(number, repaired, "outliers")
    for by_links in (True, False):
        hosts(number, "one slow host", 1, by_links=by_links)
        hosts(number, "two slow hosts", 2, by_links=by_links)
        hosts(number, "half of a switch", [*range(8)], by_links=by_links)
    for pool in (4, 8, 16):
        links(4 * number, min(pool, 8), max(pool, 8))
    for pool in (4, 8, 16, 32):
        hosts(number, "ordinary spread of 3 %", [], spread=0.03, pool=pool)
        hosts(number, "one host 25 % slower than a spread of 3 %", 1, slower=0.2, spread=0.03, pool=pool)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *([sys.argv[3:]] if sys.argv[3:] else []))
