"""The page of hpcdl history: figures with change points, numbers beneath, self-contained, bounded in size."""

import datetime as dt
import re
from dataclasses import replace

import numpy as np
import pytest
from contract.archives import archive, archive_of, case, run

from hpcdl.analysis.over_time.regressions import Accepted
from hpcdl.analysis.over_time.series import histories
from hpcdl.analysis.over_time.suspects import Suspect
from hpcdl.analysis.over_time.verdict import SuiteVerdict
from hpcdl.exit_codes import FAILED
from hpcdl.report import history as figures
from hpcdl.report import history_exports as exports
from hpcdl.report.formats.html import written
from hpcdl.report.formats.verdicts import exit_code, words


def said(suite):
    """Return the words of a suite's verdicts."""
    return [verdict.word for verdict in figures.verdicts(suite)]


def test_measures_that_changed_come_first_with_their_levels():
    changed = archive(12, 40, [(row, 36 - 3 * row, 1.3) for row in range(3)])
    text = written(figures.pages([changed, changed], whole=True))
    charts = {chart.title: chart for chart in figures.of_changed(changed)}
    assert charts.keys() >= {f"allreduce {row}" for row in (1, 2)}
    first = charts["allreduce 1"]
    times, level = first.series
    assert len(times.points) == 40
    assert level.role == "reference"
    before, *_, after = (point.y for point in level.points)
    assert after / before == pytest.approx(1.3, rel=0.03)
    assert re.match(r"The measure takes \d\d\.\d % longer \(.* %\) since 2026-", first.note)
    assert len(first.numbers()) == 1 + 40 + len(level.points)
    figure = next(part for part in re.findall("<figure.*?</figure>", text, re.DOTALL) if first.title in part)
    assert figure.count("<tr>") == len(first.numbers())
    assert text.index("Measures that changed</h2>") < text.index("All measures</h2>")
    table = text[text.rindex("All measures</h2>") :]
    assert all(f"<td>allreduce {row}</td>" in table for row in range(12))


@pytest.fixture(scope="module")
def wandering():
    """Return an archive with two changes that are open, one that became small, and one that is repaired."""
    logs = np.random.default_rng(0).normal(0, 0.002, (4, 70))
    logs[0, 28:] += np.r_[[0.04] * 5, np.linspace(0.035, 0.012, 37)]
    logs[1, 20:] += 0.08
    logs[2, 45:] += np.log(2)
    logs[3, 20:35] += 0.4
    return archive_of(logs)


def test_the_worst_open_change_is_the_headline_and_a_small_one_is_not_open(wandering):
    first, second, *others = [verdict.sentence for verdict in figures.verdicts(wandering)]
    assert first.startswith("REGRESSED: allreduce 2 takes 100.0 % longer (9")
    command = " --with ".join(" ".join(f"runs/00{run}" for run in side) for side in ((42, 43, 44), (45, 46, 47)))
    assert first.endswith(f"Compare the runs: hpcdl compare {command}")
    assert second.startswith("REGRESSED: allreduce 1 takes 8")
    assert not others
    small = [figures.of_event(wandering, event) for event in wandering.events if event.first == 28]
    assert [verdict.word for verdict in small] == ["small"]


@pytest.mark.parametrize(
    ("series", "slow", "nights", "words"),
    [
        (200, 1, 1, ["fine", "outlier"]),
        (200, 99, 2, ["fine", "outlier"]),
        (200, 1, 3, ["regressed"]),
        (200, 100, 1, ["suspected change"]),
        (1, 1, 1, ["fine", "outlier"]),
    ],
)
def test_an_outlier_is_said_but_fine_unless_it_lasts_or_half_of_the_measures_share_it(series, slow, nights, words):
    logs = np.random.default_rng(1).normal(0, 0.02, (series, 40))
    logs[:slow, -nights:] += 0.3
    assert said(archive_of(logs)) == words


def test_a_slow_host_is_a_cause_of_its_regression_or_open_itself_unless_it_was_cleared():
    suite = archive(4, 30, [(1, 20, 1.3)], kind="normal")
    hosts = [
        Suspect(str(first), "host", "times of cases", first, 22, ended, 1.2, 3)
        for first, ended in ((20, None), (20, 21), (20, 28), (10, None), (10, 15))
    ]
    vars(suite)["suspects"] = hosts
    (event,) = suite.events
    assert event.suspects == [hosts[0], hosts[2]]
    assert suite.open_suspects == [hosts[3]]


def test_a_value_that_lasts_and_is_no_change_yet_is_not_judged_and_a_series_bimodal_from_its_start_is():
    """Its noise is that of all, so that three values are no change among 200 series; the fifth decides."""
    logs = np.random.default_rng(1).normal(0, 0.06, (200, 23))
    logs[0] = np.r_[[0.0] * 20, [0.11] * 3]
    assert said(archive_of(logs)) == ["suspected change"]
    logs = np.random.default_rng(1).normal(0, 0.01, (4, 60))
    logs[0] += 0.2 * (np.arange(60) // 7 % 2)
    reasons = [archive_of(logs[:, :runs]).waiting("unstable start") for runs in range(13, 61)]
    assert [number for number, reason in enumerate(reasons) if reason] == [*range(7)]


@pytest.mark.parametrize(("kind", "times"), [("wandering", 1), ("AR .6", 1), ("outliers", 0), ("weekly", 0)])
def test_measures_that_wander_are_said_to_once(kind, times):
    assert said(archive(60, 60, seed=7, kind=kind)).count("drift") == times


def test_each_sentence_of_history_appears(wandering):
    """Those of folders, "no runs" and "not read", appear in the test of the command."""
    entry = Accepted("allreduce 1", 0.3, "known", dt.date(2026, 12, 31))
    flips, late = (
        [(3, begin + night, factor) for night, factor in ((0, 1.3), (5, 1 / 1.3), (10, 1.3))] for begin in (15, 35)
    )
    archives = [
        archive(4, 16, [(1, 13, 1.3)], kind="normal", accepted=[entry]),
        archive(4, 16, [(1, 13, 1.6)], kind="normal", accepted=[entry]),
        archive(4, 20, [(1, 13, 1.3), (1, 17, 1 / 1.3)], kind="normal"),
        archive(4, 48, [*late, (2, 45, 0.7)], kind="normal"),
        archive(4, 29, flips, kind="normal"),
        archive(4, 16, [(1, 7, 1.5)], kind="normal"),
        archive(4, 30, [(1, 7, 1.5), (2, 29, 1.5)], kind="normal"),
        archive(4, 30, [(1, 29, 1.5), (2, 29, 1.5)], kind="normal"),
        archive(4, 12, kind="normal"),
        wandering,
        archive(4, 13, kind="normal"),
    ]
    before = [run for job in archives[-1].history.jobs for run in job.runs]
    next_run = replace(before[-1], date="2026-02-01T00:00:00+00:00", path="n", job="n")
    others = {"disturbed": {"allreduce 2": "other processes"}, "without_result": {"allreduce 3": "needs a GPU"}}
    less = replace(next_run, cases=next_run.cases[:2], **others)
    more = replace(next_run, cases=(*next_run.cases, case("new", 1.0)))
    never_quiet = [
        replace(run, cases=(), disturbed_cases=run.cases, disturbed=dict.fromkeys([run.cases[0].case], "others"))
        for run in before
    ]
    archives += [
        SuiteVerdict(histories([*before, less])[0]),
        SuiteVerdict(histories([*before, more])[0], age=dt.timedelta(days=2)),
        archive(60, 60, seed=7, kind="wandering"),
    ]
    slow_host = archive(4, 30, kind="normal")
    vars(slow_host)["suspects"] = [Suspect("n7", "host", "times of cases", 10, 12, None, 1.2, 9)]
    archives += [slow_host, SuiteVerdict(histories(never_quiet)[0])]
    every = [verdict for suite in archives for verdict in figures.verdicts(suite)]
    every += [figures.of_event(suite, event) for suite in archives for event in suite.events]
    assert [verdict.headline for verdict in every if len(verdict.headline.split()) > 30] == []
    assert {verdict.word for verdict in every} | {"no runs", "not read"} == words("history")
    for suite in archives:  # metrics, JSON and exit code say the same
        code = exit_code(figures.verdicts(suite))
        metrics = {gauge.name: gauge.samples for gauge in exports.gauges([suite], code)}
        red = sum(metrics[f"hpcdl_history_{name}"][0][1] for name in ("open_regressions", "missing_cases"))
        assert (red > 0) == (code == FAILED) == (exports.record(suite)["verdict"] == "regressed")
    records = [exports.record(suite) for suite in archives]
    expected = (
        "fine, regressed, improved, regressed, fine, not judged, fine, not judged, too few runs, regressed, fine"
    )
    assert ", ".join(document["verdict"] for document in records[:11]) == expected
    states = [[(event["open"], event["accepted"]) for event in document["events"]] for document in records[:3]]
    assert states == [[(False, True)], [(True, False)], [(False, False)] * 2]
    assert [document["too_few_runs"] for document in records[8:13]] == [4, 0, 0, 0, 1]
    assert [document["judged"] for document in records[8:13]] == [0, 4, 4, 2, 4]
    assert "accepted only up to 30 %" in figures.verdicts(archives[1])[0].sentence
    assert records[11]["missing"] == [{"case": "allreduce 3", "reason": "needs a GPU"}]


def test_a_change_at_a_new_environment_names_it_and_its_figure_has_a_line_for_each():
    suite = archive(4, 30, [(row, 20, 1.3) for row in range(4)], kind="normal", new_environment=20)
    (event,) = suite.events
    assert (event.first, event.environment, len(event.open)) == (20, True, 4)
    cause = "Slower since the environment changed: its key differs, in no recorded fact."
    assert cause in figures.of_event(suite, event).sentence
    drawn = [line for line in figures.of_changed(suite)[0].series if line.role == "method"]
    assert [(line.name, len(line.points)) for line in drawn] == [("environment 1", 20), ("environment 2", 10)]
    assert said(suite) == ["regressed"]


def test_junit_fails_by_group_skips_a_young_one_and_has_all_else_in_one_case():
    """A regression of a group that the newest run lacks is among all else, as its missing case is."""
    regressed, young = archive(4, 16, [(1, 13, 1.3)], kind="normal"), archive(4, 12, kind="normal")
    times = np.exp(np.random.default_rng(0).normal(0, 0.01, (2, 16)))
    times[1, 12:] *= 1.5
    cases = [[case("a", a), case("b", b, measure="step_seconds")] for a, b in times.T.tolist()]
    gone = SuiteVerdict(histories([run(night, cases[night][: 2 - (night == 15)]) for night in range(16)])[0])
    for suite, failures, skipped in ((regressed, [1, 0], [0, 0]), (young, [0, 0], [1, 1]), (gone, [0, 2], [0, 0])):
        group, other = exports.tests(suite).cases
        assert (group.name, other.name) == ("collective, 4 ranks, time_p50_seconds", "hosts, links and cases")
        assert [len(group.failures), len(other.failures)] == failures
        assert [len(group.skipped), len(other.skipped)] == skipped


def test_levels_are_medians_between_changes():
    values = np.array([np.nan, 1.0, 3.0, 2.0, 9.0, np.nan, 7.0, 8.0])
    points = figures.levels_of(values, [3, 4], [float(x) for x in range(8)])
    assert [point[:2] for point in points] == [(1, 2.0), (3, 2.0), (3, 2.0), (4, 2.0), (4, 8.0), (7, 8.0)]
