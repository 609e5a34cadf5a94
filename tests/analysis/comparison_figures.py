"""False findings and power of `hpcdl compare` for twelve measures, as shares of comparisons.

    python tests/analysis/comparison_figures.py [COMPARISONS [LAUNCHES,...]]

A finding is a regressed measure. Without a change the share is of comparisons with any; with one, of those that find
it in the first measure. LAUNCHES: of each side, or of baseline and candidate, as 20v3.

    python tests/analysis/comparison_figures.py decide [CELLS]

prints the shares of cells of two methods that are won: equal ones by seeds, deviation, budgets and grids, then ones
of which the second takes 1.5 times as long.

    python tests/analysis/comparison_figures.py judge [ARCHIVES]

prints what the rule for two sides does: width and coverage of its intervals, the share of archives of equal schemes in
which one is told apart, and the share of schemes that are found; then, section by section, the share of archives of
three launches with a decided row, and the verdicts of all sections on the same pairs.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from hpcdl.analysis.over_time import regressions as module
from hpcdl.analysis.over_time.pairing import Change
from hpcdl.analysis.over_time.regressions import REGRESSED, changes_of
from hpcdl.analysis.statistics.judging import Side, judge

MEASURES = 12


def normal(rng, n, deviation=0.01):
    return rng.normal(0, deviation, (MEASURES, n))


def states(probability, *, shared=False, deviation=0.01, measures=MEASURES):
    """Each launch, or each measure of it, is in a state 8 % slower with a probability."""

    def side(rng, n, _):
        slow = rng.random((1 if shared else MEASURES, n)) < probability
        return normal(rng, n, deviation) + np.log(1.08) * (slow & (np.arange(MEASURES) < measures)[:, None])

    return side


def outliers(probability, least=1.3, largest=3.0, deviation=0.01):
    def side(rng, n, _):
        slow = rng.random((MEASURES, n)) < probability
        return normal(rng, n, deviation) + slow * np.log(rng.uniform(least, largest, (MEASURES, n)))

    return side


def drifting(correlation, deviation, *, shared=False):
    """Launches of one job: each is correlated with the one before it."""

    def side(rng, n, _):
        values = np.zeros((1 if shared else MEASURES, n))
        values[:, 0] = rng.normal(size=len(values))
        for t in range(1, n):
            fresh = rng.normal(size=len(values))
            values[:, t] = correlation * values[:, t - 1] + np.sqrt(1 - correlation**2) * fresh
        return deviation * values + normal(rng, n, deviation / 4 if shared else 0)

    return side


def unequal(noisy):
    return lambda rng, n, side: normal(rng, n, 0.06 if side == noisy else 0.02)


def changed(side, factor, measures=1, share=1.0):
    """Make the first measures of a share of the candidate's launches slower."""

    def slower(rng, n, which):
        values = side(rng, n, which)
        values[:measures, : round(share * n)] += which * np.log(factor)
        return values

    return slower


QUIET = states(0.0)
UNCHANGED = {
    "normal, 2 %": states(0.0, deviation=0.02),
    **{
        f"two states of {'launches' if shared else 'measures'}, {100 * p:.0f} %, noise {100 * noise:g} %": states(
            p, shared=shared, deviation=noise
        )
        for shared in (False, True)
        for p in (0.1, 0.5)
        for noise in (0.01, 0.002)
    },
    "two states of one measure, 50 %": states(0.5, measures=1),
    "candidate varies three times as much": unequal(1),
    "baseline varies three times as much": unequal(0),
    "outliers, 3 %": outliers(0.03),
    "outliers, 10 %": outliers(0.1),
}
DRIFTING = {
    f"one job, correlation {r:g} of {'launches' if shared else 'measures'}, noise {100 * noise:g} %": drifting(
        r, noise, shared=shared
    )
    for r in (0.5, 0.8)
    for shared in (False, True)
    for noise in (0.02, 0.05)
}
CHANGED = {
    "+10 % in one, noise 2 %": changed(states(0.0, deviation=0.02), 1.1),
    "+10 % in one, noise 2 %, outliers 3 % to +50 %": changed(outliers(0.03, 1.1, 1.5, 0.02), 1.1),
    "+10 % in one, outliers 10 %": changed(outliers(0.1), 1.1),
    "+5 % in all": changed(QUIET, 1.05, MEASURES),
    "+10 % in one, two states of measures, 10 %": changed(states(0.1), 1.1),
    "a third of launches +50 % in one": changed(QUIET, 1.5, share=1 / 3),
    "a third of launches +50 % in all": changed(QUIET, 1.5, MEASURES, share=1 / 3),
}


def regressions(before, now):
    """Return a flag per measure; ``before``, ``now``: logarithms, (measures, launches)."""
    sides = [
        [[("", f"{side}{run}", value) for run, value in enumerate(row)] for row in np.exp(logs).tolist()]
        for side, logs in (("a", before), ("b", now))
    ]
    changes = [
        Change("s", str(number), "step_seconds", values) for number, values in enumerate(zip(*sides, strict=True))
    ]
    return np.array([change.verdict == REGRESSED for change in changes_of(changes, 0.03, 0.0, by_job=False)[0]])


def share(side, launches, comparisons, *, first):
    """Return the share of comparisons with a regressed measure, or in which the ``first`` one is."""
    rng = np.random.default_rng(launches)
    found = [regressions(*(side(rng, n, which) for which, n in enumerate(launches))) for _ in range(comparisons)]
    return np.mean([flags[0] if first else flags.any() for flags in found])


def decisions(cells):
    from test_deciding import BUDGETS, GRIDS, decided

    for factor, settings in ((1.0, [(n, sd) for n in (3, 4, 6) for sd in (0.05, 0.2, 0.5)]), (1.5, [(6, 0.2)])):
        for seeds, deviation in settings:
            for grids in GRIDS:
                for budgets in BUDGETS:
                    rng = np.random.default_rng(seeds)
                    case = (factor, deviation, seeds, GRIDS[grids], BUDGETS[budgets])
                    won = np.mean([decided(rng, *case) for _ in range(cells)])
                    text = f"{factor:g} times, {seeds} seeds, sd {deviation:g}, {grids} grid, budgets {budgets}"
                    print(f"{text}: {won:.3f}", flush=True)


def drawn(rng, schemes, launches, own, *, shared=0.0, spread=0.0, slower=0.0):
    """Return sides, the fastest first; ``own``: standard deviation, ``spread``: of its logarithm among schemes."""
    deviations = own * np.exp(spread * rng.normal(size=(schemes, 1)))
    logs = deviations * rng.normal(size=(schemes, launches)) + shared * rng.normal(size=launches)
    logs[1:] += np.log1p(slower)
    return sorted((Side(dict(enumerate(np.exp(row)))) for row in logs), key=lambda side: side.middle)


def rule(archives):
    rng = np.random.default_rng(1)
    for shared in (0.05, 0.0):
        for launches in (2, 3, 5):
            equal = [judge([drawn(rng, 2, launches, 0.01, shared=shared)])[0][0].size for _ in range(archives)]
            slow = [
                judge([drawn(rng, 2, launches, 0.01, shared=shared, slower=0.05)])[0][0] for _ in range(archives)
            ]
            covered = np.mean([size.low <= 1 <= size.high for size in equal])
            width, found = (
                np.mean([size.high - size.low for size in equal]),
                np.mean([one.word != "open" for one in slow]),
            )
            print(f"{launches} launches, own noise 1 %, shared {100 * shared:g} %: covers {covered:.3f}, width {width:.3f}, "
                  f"finds 5 % in {found:.2f}", flush=True)  # fmt: skip
    for schemes, launches, cases, spread in (
        (6, 3, 1, 0),
        (6, 3, 1, 0.5),
        (6, 3, 8, 0.5),
        (6, 5, 8, 0.5),
        (2, 3, 8, 0.5),
    ):
        told = found = 0.0
        for _ in range(archives):
            kinds = [[drawn(rng, schemes, launches, 0.02, shared=0.02, spread=spread, slower=by) for _ in range(cases)]
                     for by in (0.0, 0.1)]  # fmt: skip
            equal, slow = (
                [one.word != "open" for some in judge(kind, chosen=True) for one in some] for kind in kinds
            )
            told, found = told + any(equal), found + np.mean(slow)
        print(f"{schemes} schemes, {launches} launches, {cases} sizes, deviations by exp({spread:g}): told apart in "
              f"{told / archives:.3f} of archives; 10 % found in {found / archives:.2f}", flush=True)  # fmt: skip


def sections(archives):
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from conftest import Hand
    from report.test_one_rule import DISTURBED, SCENARIOS, SECTIONS, six, verdict_of

    rng = np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as folder:
        hands = (Hand(Path(folder) / str(number)) for number in range(10**9))
        for name in SECTIONS:
            decided = [verdict_of(name, next(hands), 10 * np.exp(0.02 * rng.normal(size=(2, 3))))[0] != "open"
                       for _ in range(archives)]  # fmt: skip
            print(f"two equal sides, {name}: decided in {np.mean(decided):.3f} of {archives} archives", flush=True)
        both = np.array([six(next(hands), 0.02 * rng.normal(size=(6, 3))) for _ in range(archives)])
        print(
            f"six equal schemes: decided rows in {both[:, 0].mean():.3f} (contrast), {both[:, 1].mean():.3f} (collectives)"
        )
        for scenario, (first, other, _, _) in SCENARIOS.items():
            taken = DISTURBED.get(scenario, ())
            verdicts = {name: verdict_of(name, next(hands), (first, other), taken=taken) for name in SECTIONS}
            print(f"{scenario}: " + "; ".join(f"{name} {' '.join(verdict)}" for name, verdict in verdicts.items()))


if __name__ == "__main__" and sys.argv[1:2] == ["judge"]:
    rule(int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
    sections(int(sys.argv[2]) // 10 if len(sys.argv) > 2 else 100)
elif __name__ == "__main__" and sys.argv[1:2] == ["decide"]:
    decisions(int(sys.argv[2]) if len(sys.argv) > 2 else 400)
elif __name__ == "__main__":
    module.smallest_visible = lambda difference, *_: difference.value  # most of the time, and no finding
    comparisons = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    texts = (sys.argv[2] if len(sys.argv) > 2 else "2,3,6,12,20").split(",")
    for kinds, first in ((UNCHANGED, False), (DRIFTING, False), (CHANGED, True)):
        for title, side in kinds.items():
            shares = []
            for text in texts:
                launches = [int(n) for n in (text if "v" in text else f"{text}v{text}").split("v")]
                shares.append(f"{share(side, launches, comparisons, first=first):.3f} ({text})")
            print(f"{title}: {', '.join(shares)}", flush=True)
