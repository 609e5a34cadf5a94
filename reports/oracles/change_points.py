"""Change points of `hpcdl history`, Apache Otava and a rolling median on public series of nightly benchmarks.

    python reports/oracles/change_points.py NAME=CHECKOUT...

A NAME of ARCHIVES is the repository's own, and CHECKOUT its folder; archives without one are skipped visibly.
Otava is `pip install apache-otava`. At most 70 series of an archive count, drawn once, with their last 365 runs.

Reference: the least absolute deviations fit of a piecewise constant level to the logarithms (Bai, Econometric
Theory 11, 1995), by dynamic programming with Schwarz's penalty for Laplace noise. A level has at least six values.
A step is where the medians of neighbouring levels differ by 3 % and by three robust deviations of their values. No
method fits levels like this. Otava and the reference know all runs; hpcdl and the rolling median judge each run by
those before it. A finding within three runs of a step finds it; another one is unsupported.

False alarms are findings in runs without a step: levels of the reference are subtracted, and blocks of five runs
are shuffled, in all series alike.
"""

import itertools
import json
import math
import subprocess
import sys
import tarfile
import time

import numpy as np
import pandas as pd
from otava.analysis import compute_change_points

from hpcdl.analysis.over_time.change_points import change_points

SERIES, RUNS = 70, 365
EFFECT = math.log(1.03)
NEAR = 3
LEVEL = 6
ROUNDS = 4
I7 = "virtualenv-py3.7-Cython0.29.21-"


def files(checkout, folder, branch="HEAD"):
    """Yield path and content of each file of a folder of a repository."""
    command = ["git", "-C", checkout, "archive", branch, folder]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as git,
        tarfile.open(fileobj=git.stdout, mode="r|") as archive,
    ):
        yield from ((member.name, archive.extractfile(member).read()) for member in archive if member.isfile())


def tigerbeetle(checkout):
    """The series of Otava's tests, which expect changes at the runs of STATED."""
    (text,) = (text for _, text in files(checkout, "tests/tigerbeetle_test.py"))
    values = text.decode().partition("return [")[2].partition("]")[0]
    return [(run, {"value": float(value)}) for run, value in enumerate(values.split(","))]


def sandmark(checkout):
    """Sequential benchmarks of the newest trunk of OCaml of each night."""
    nights = {}
    for name, text in files(checkout, "sequential/turing"):
        night, file = name.split("/")[2], name.split("/")[-1]
        if file.endswith("+trunk+sequential_1.orun.summary.bench"):
            version = tuple(map(int, file.split("+")[0].split(".")))
            lines = [json.loads(line) for line in text.decode().splitlines() if line.endswith("}")]
            times = {line["name"]: line["time_secs"] for line in lines if "time_secs" in line}
            nights[night] = max(nights.get(night, ((), {})), (version, times), key=lambda item: item[0])
    return [(night, times) for night, (_, times) in nights.items()]


def asv(environment):
    """Return a reader of the results of airspeed velocity on the machine i7, by commit date."""

    def runs(checkout):
        for name, text in files(checkout, "results/i7"):
            if not name.endswith(f"{environment}.json"):
                continue
            run, times = json.loads(text), {}
            for case, row in run["results"].items():
                result, *rest = row["result"] if isinstance(row, dict) else row or [None]
                for settings, value in zip(
                    itertools.product(*(rest[0] if rest else ())), result or (), strict=False
                ):
                    if ".time_" in case:
                        times[f"{case}{settings}"] = value
            yield (run["date"], run["commit_hash"]), times

    return runs


def enso(checkout):
    """Scheduled benchmarks of the engine and the libraries of Enso."""
    for _, text in files(checkout, "cache"):
        run = json.loads(text)
        if run.get("bench_run", {}).get("event") == "schedule":
            yield int(run["bench_run"]["id"]), run["label_score_dict"]


def boa(checkout):
    """Nightly scores of the V8 benchmarks in several JavaScript engines."""
    nights = {}
    for name, text in files(checkout, "bench/results"):
        table = json.loads(text)
        for engine, scores in table["results"].items():
            for night, score in zip(table["labels"], scores, strict=False):
                nights.setdefault(night, {})[f"{name} {engine}"] = score and 1 / score
    return nights.items()


def devito(checkout):
    """Stencil operators of Devito on an i7-6700K, by revision."""
    revisions = {}
    for name, text in files(checkout, "graphs", "gh-pages"):
        if "machine-i7-6700K/" in name and "python-3.8" in name and not name.endswith("summary.json"):
            for revision, values in json.loads(text):
                for number, value in enumerate(values if isinstance(values, list) else [values]):
                    revisions.setdefault(revision, {})[f"{name} {number}"] = value
    return revisions.items()


STATED = {"TigerBeetle": [[15, 71]]}
"""First runs after the steps that an archive states; others have those of the reference."""
ARCHIVES = {  # by repository: apache, ocaml-bench, pv, pv, enso-org, boa-dev, devitocodes on GitHub
    "otava": ("TigerBeetle", tigerbeetle),
    "sandmark-nightly": ("OCaml (Sandmark)", sandmark),
    "numpy-bench": ("NumPy", asv(f"{I7}six")),
    "scipy-bench": ("SciPy", asv(f"{I7}Tempita0.5.2-numpy1.14.5-pybind112.5.0-pytest-pythran-six")),
    "engine-benchmark-results": ("Enso", enso),
    "data": ("Boa", boa),
    "devito-performance": ("Devito", devito),
}


def table(runs):
    """Return (series, runs): logarithms of at most SERIES series, drawn once, and of the last RUNS runs."""
    runs = sorted(runs)
    keys = list(dict.fromkeys(key for _, times in runs for key in times))
    rows = [[times.get(key) for key in keys] for _, times in runs]
    times = np.array(rows, np.float64).T
    logs = np.log(np.where(np.isfinite(times) & (times > 0), times, np.nan))
    logs = logs[np.sort(np.random.default_rng(0).permutation(len(logs))[:SERIES])]
    return logs[:, np.isfinite(logs).any(axis=0)][:, -RUNS:]


def deviation(values):
    """Return the robust standard deviation."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def steps(values):
    """Return the first values after each step of the reference."""
    count = len(values)
    if count < 2 * LEVEL:
        return []
    cost = np.full((count + 1, count + 1), np.inf)
    for begin in range(count - LEVEL + 1):
        rest = values[begin:]
        medians = pd.Series(rest).expanding().median().to_numpy()
        sums = np.tril(np.abs(rest - medians[:, None])).sum(axis=1)
        cost[begin, begin + LEVEL :] = sums[LEVEL - 1 :]
    noise = (
        float(np.median(np.abs(np.diff(values)))) / 1.146
    )  # of Laplace noise, whose differences have this median
    penalty = math.log(count) * max(noise, 1e-3)
    best, last = np.full(count + 1, np.inf), np.zeros(count + 1, int)
    best[0] = -penalty
    for end in range(LEVEL, count + 1):
        total = best[:end] + cost[:end, end] + penalty
        best[end], last[end] = total.min(), total.argmin()
    cuts = [count]
    while cuts[0]:
        cuts.insert(0, int(last[cuts[0]]))
    places = []
    for begin, place, end in zip(cuts, cuts[1:], cuts[2:], strict=False):
        before, after = values[begin:place], values[place:end]
        residuals = np.concatenate([before - np.median(before), after - np.median(after)])
        if abs(np.median(after) - np.median(before)) >= max(EFFECT, 3 * deviation(residuals)):
            places.append(place)
    return places


def hpcdl(logs):
    """Return by series the first runs of the changes that `hpcdl history` reports."""
    places = [[] for _ in logs]
    for change in change_points(logs):
        places[change.series].append(change.first)
    return places


def otava(p):
    """Return a method: Otava with a largest p and hpcdl's least change."""

    def method(logs):
        places = []
        for values in logs:
            runs = np.flatnonzero(np.isfinite(values))
            times = np.exp(values[runs]).tolist()  # of an array Otava would search more than its window
            found, _ = compute_change_points(times, max_pvalue=p, min_magnitude=math.expm1(EFFECT))
            places.append([int(runs[change.index]) for change in found])
        return places

    return method


def rolling_median(deviations):
    """Return a method: medians of six runs that depart from that of up to 30 before by 3 % and more."""

    def method(logs):
        places = []
        for values in logs:
            runs, begin, found = np.flatnonzero(np.isfinite(values)), 0, []
            known = values[runs]
            for first in range(10, len(known) - 5):
                old = known[max(begin, first - 30) : first]
                size = abs(np.median(known[first : first + 6]) - np.median(old)) if len(old) >= 6 else 0.0
                if size >= max(EFFECT, deviations * deviation(old)):
                    found.append(int(runs[first]))
                    begin = first
            places.append(found)
        return places

    return method


METHODS = {
    "hpcdl": hpcdl,
    "Otava": otava(1e-3),
    "rolling median": rolling_median(3),
    "Otava, p < 1e-5": otava(1e-5),
    "rolling median, 7 deviations": rolling_median(7),
}
"""By name. The last two were made strict until they had nearly as few false alarms as hpcdl."""


def shuffled(logs, places, generator):
    """Return ``logs`` without their steps, blocks of five runs in another order, the same in all series."""
    residuals = logs.copy()
    for values, cuts in zip(residuals, places, strict=True):
        for level in np.split(values, cuts):
            if np.isfinite(level).any():
                level[:] = level - np.nanmedian(level)  # a view of residuals
    blocks = np.array_split(np.arange(logs.shape[1]), logs.shape[1] // 5)
    return residuals[:, np.concatenate([blocks[block] for block in generator.permutation(len(blocks))])]


def score(found, reference, known):
    """Return found and missed steps, and unsupported findings; distances count the runs with a value."""
    counts = np.zeros(3, int)
    for first, true, there in zip(found, reference, known, strict=True):
        runs = np.cumsum(there)
        distance = np.abs(np.subtract.outer(runs[first], runs[true])).reshape(len(first), len(true))
        hit = int((distance.min(axis=0, initial=NEAR + 1) <= NEAR).sum())
        counts += hit, len(true) - hit, int((distance.min(axis=1, initial=NEAR + 1) > NEAR).sum())
    return counts


def compared(name, logs):
    """Print a row for each method; return its found and missed steps, unsupported findings and false alarms."""
    known = np.isfinite(logs)
    rows = zip(logs, known, strict=True)
    levels = [np.flatnonzero(there)[steps(values[there])].tolist() for values, there in rows]
    noise = [shuffled(logs, levels, np.random.default_rng(seed)) for seed in range(ROUNDS)]
    counts = {}
    for method, search in METHODS.items():
        begin = time.monotonic()
        places = search(logs)
        seconds = float(f"{time.monotonic() - begin:.1g}")
        false = sum(map(len, itertools.chain.from_iterable(map(search, noise)))) / ROUNDS
        counts[method] = np.array([*score(places, STATED.get(name, levels), known), false])
        cells = (
            name,
            f"{len(logs)} x {logs.shape[1]}",
            method,
            *map("{:.0f}".format, counts[method]),
            f"{seconds:g}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    return counts


def main(checkouts):
    """Print a table by archive and method, the sums, and the answer."""
    print("| archive | series x runs | method | found | missed | unsupported | false alarms | seconds, roughly |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for repository, (name, read) in ARCHIVES.items():
        if repository in checkouts:
            rows.append(compared(name, table(read(checkouts[repository]))))
        else:
            print(f"| {name} | skipped: no checkout of {repository} | | | | | | |", flush=True)
    if not rows:
        return
    totals = {method: sum(row[method] for row in rows) for method in METHODS}
    for method, counts in totals.items():
        print(f"| all | | {method} | {' | '.join(map('{:.0f}'.format, counts))} | |")
    shares = (f"{100 * hit / (hit + missed):.0f} %" for hit, missed, *_ in totals.values())
    ours, otavas, median, strict_otavas, strict = shares
    ratios = [f"{counts[-1] / totals['hpcdl'][-1]:.1f}" for counts in totals.values()]
    alarms = f"with {ratios[3]} and {ratios[4]} times as many false alarms as hpcdl"
    print(f"\nMade strict, Otava finds {strict_otavas} and the rolling median {strict}, {alarms}.")
    more = f"with {ratios[1]} and {ratios[2]} times as many false alarms"
    print(f"\nhpcdl finds {ours} of the steps, Otava {otavas} and a rolling median {median}, {more}.")


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("change_points.py: which archives? NAME=CHECKOUT ...")
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
