"""Claims are decided by intervals, clause by clause, and their cases exist."""

import gzip
import json
import lzma
import math
import re
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_rel

from hpcdl import suite
from hpcdl.analysis.network.clusters import records as measured_by_others
from hpcdl.analysis.run.record import Record
from hpcdl.cli import main
from hpcdl.commands.claims import _records
from hpcdl.report.claims import document, summary
from hpcdl.report.formats.verdicts import exit_code, words
from hpcdl.report.run.claims import (
    ABSENT,
    BY_OTHERS,
    DECIDE,
    MODEL,
    NO,
    OPEN,
    YES,
    Claim,
    Clause,
    Kind,
    Source,
    decide,
    sources,
)
from hpcdl.trace.schema import packed, read

ROOT = Path(__file__).parents[2]
RING, TREE = {"aggregation": "ring"}, {"aggregation": "tree"}


def claims():
    return [claim for source in sources() for claim in source.claims]


def record(name, value, low=None, high=None, **fields):
    """Return a record of three launches, ``low``, ``value`` and ``high``."""
    bounds = {"step_seconds_low": low, "step_seconds_high": high}
    whole = Record(aggregation=name, step_seconds=value, **bounds, **fields)
    whole.samples = {n: Record(step_seconds=time) for n, time in enumerate((value, low, high)) if time is not None}
    return whole


def decided(records, field="step_seconds", here=YES, **limits):
    limits = {"case": RING if field == "step_seconds" else {}, **limits}
    claim = Claim(text="t", place="s", clauses=[Clause(run="r", field=field, **limits)], here=here)
    return decide(claim, {"r": records})


def test_a_ratio_is_decided_by_its_whole_interval():
    for ring, tree, verdict in [
        ((1.0, 0.97, 1.03), (3.0, 2.9, 3.1), YES),
        ((1.0, 0.9, 1.1), (2.0, 2.1, 1.9), OPEN),
        ((4.0, 3.7, 4.3), (2.0, 2, 2), NO),
    ]:
        decision = decided([record("ring", *ring), record("tree", *tree)], by=TREE, below=0.5)
        ratio = ttest_rel(np.log(ring), np.log(tree)).confidence_interval()
        assert decision.clauses[0].value[1:] == pytest.approx(tuple(np.exp(ratio)))
        assert decision.word == verdict
        assert decision.is_surprising == (verdict == NO)


def test_seeds_have_students_interval_by_seed_and_failed_cases_do_not_count():
    records = [record("ring", value, seed=value) for value in (1.0, 2.0, 3.0)]
    records += [record("ring", 100.0, error="it failed")]
    value, low, high = decided(records, below=5).clauses[0].value
    assert (value, high - value, value - low) == pytest.approx((2.0, 4.3027 / 3**0.5, 4.3027 / 3**0.5), 1e-4)
    assert decided(records, below=3).word == OPEN
    rows = [("ring", 0.5, 1), ("ring", 0.8, 2), ("tree", 0.25, 1), ("tree", 0.4, 2)]
    records = [Record(aggregation=name, final_loss=loss, seed=seed) for name, loss, seed in rows]
    ratio = decided(records, "final_loss", case=RING, by=TREE, above=1.9, below=2.1)
    assert ratio.clauses[0].value == pytest.approx((2, 2, 2))
    difference = decided(records, "final_loss", case=RING, minus=TREE, above=0)
    assert difference.clauses[0].value.value == pytest.approx(0.325)
    assert difference.word == OPEN


def test_one_seed_decides_no_accuracy_and_no_target():
    for field in ("final_accuracy", "final_loss", "seconds_to_target", "epochs_to_target"):
        for seeds, verdict in (([1], OPEN), ([1, 1], OPEN), ([1, 2], YES)):
            records = [Record(seed=seed, **{field: 0.9}) for seed in seeds]
            assert decided(records, field, above=0.5).word == verdict, (field, seeds)


def test_a_share_of_seeds_has_exact_bounds():
    """Three of three seeds may be of a share of 0.29, and differ from none of three by chance."""
    for seeds, diverged, verdict in ((1, 1, OPEN), (3, 3, OPEN), (6, 6, YES), (12, 11, YES), (6, 0, NO)):
        records = [
            Record(aggregation="ring", seed=seed, diverged_step=3 if seed < diverged else None)
            for seed in range(seeds)
        ]
        decision = decided(records, "diverged", above=0.5)
        assert decision.word == verdict
        expected = binomtest(diverged, seeds).proportion_ci(0.95, "exact")
        assert decision.clauses[0].value == pytest.approx((diverged / seeds, *expected))
        tree = [Record(aggregation="tree", seed=seed) for seed in range(seeds)]
        difference = decided([*records, *tree], "diverged", case=RING, minus=TREE, above=0)
        assert difference.word == (YES if seeds > 3 and diverged else OPEN)
        assert difference.clauses[0].here[0] == f"{100 * diverged / seeds:+.1f} points"


def test_survivors_decide_nothing():
    """A seed that diverged or failed has no accuracy, and the others would be a choice of the better ones."""
    kept = [Record(seed=seed, final_accuracy=0.9 + seed / 1000) for seed in range(4)]
    assert decided(kept, "final_accuracy", above=0.8).word == YES
    for lost in ({"diverged_step": 3}, {"error": "rank 0: OSError: full"}):
        decision = decided([*kept, Record(seed=9, **lost)], "final_accuracy", above=0.8)
        assert (decision.word, decision.deciding.doubt) == (OPEN, "a seed has no number")
    nan = "rank 0: FloatingPointError: step 76: gradient of conv1.weight: element 0 of the flat gradient is nan"
    share = decided([*kept, Record(seed=9, error=nan)], "diverged", above=0.5)
    assert share.clauses[0].value.value == 0.2


def test_a_missed_target_is_later_than_any_other():
    sides = (("ring", 2.0), ("tree", None))
    records = [
        Record(aggregation=name, seconds_to_target=value, target_accuracy=0.9, seed=seed)
        for name, value in sides
        for seed in range(5)  # which vote
    ]
    late = decided(records, "seconds_to_target", case=TREE, by=RING, above=1)
    assert late.word == YES
    assert late.clauses[0].here[0] == "infinite, because a seed misses the target"


def test_times_of_ranks_that_share_cores_decide_nothing():
    shared = decided([record("ring", 1.0, 0.9, 1.1, oversubscribed=True)], below=5)
    assert (shared.word, shared.remedy) == (OPEN, "times of ranks that do not share cores")
    assert shared.verdict.sentence == (
        " claims: t. This is not decided: 1.00 s. To decide it: times of ranks that do not share cores."
    )
    assert decided([record("ring", 1.0, 0.9, 1.1, oversubscribed=True, network="lan")], below=5).word == MODEL
    alone = decided([record("ring", 1.0, 0.9, 1.1, launches=1)], below=5)
    assert (alone.word, alone.remedy) == (OPEN, "more launches than one")
    assert decided([record("ring", 1.0, 0.9, 1.1, launches=3)], below=5).word == YES
    bare = decided([record("ring", 1.0, launches=3)], below=5)
    assert (bare.word, bare.deciding.doubt) == (OPEN, "no interval")


def test_limits_have_reasons_and_each_clause_is_a_sentence_with_its_number_and_its_subject():
    """0 and 1, which compare, need no reason. A count that follows from the method is a test, and no claim."""
    for claim in claims():
        assert claim.clauses or claim.would_decide, claim
        for clause in claim.clauses:
            assert "bytes" not in clause.field and "messages" not in clause.field, clause
            limits = {clause.above, clause.below} - {None}
            assert limits and (clause.because or limits <= {0, 1}), clause
            assert len(clause.text.partition("{}")[0].split()) >= 2, clause
            assert not re.match(r"(it|they|this)\b", clause.text), clause
        for text in (claim.text, *(clause.text for clause in claim.clauses)):
            assert len(text.split()) <= 24, text
            assert not re.search(r"[.;:]$|; |\bthe other\b(?! \w)|\bthat of\b", text), text


def test_a_claim_is_confirmed_if_all_of_its_clauses_are():
    """Its sentence has the number of the clause that decides, and asks for no run of a clause that has none."""
    fast, faster, slow = (
        Clause(run="r", field="step_seconds", case={}, text=text, **limits)
        for text, limits in (("fast", {"below": 4}), ("in {}", {"below": 2}), ("slow", {"above": 2}))
    )
    absent = Clause(run="none", field="step_seconds", case={}, above=1)
    runs = {"r": [record("ring", 1.0, 0.9, 1.1, launches=3)], "none": []}
    cases = [([fast, faster], YES), ([fast, slow], NO), ([fast, absent], OPEN), ([absent], ABSENT), ([slow], NO)]
    claim = {"text": "Rings are fast", "place": "s", "source": "A paper"}
    decisions = [decide(Claim(**claim, clauses=clauses), runs) for clauses, _ in cases]
    decisions[1] = decide(Claim(**claim, clauses=[fast, slow], here=NO), runs)
    assert [one.word for one in decisions] == [word for _, word in cases]
    assert [one.verdict.sentence for one in decisions] == [
        "A paper claims: Rings are fast. This is confirmed: in 1.00 s (0.900 to 1.10).",
        "A paper claims: Rings are fast. This is refuted: slow: 1.00 s (0.900 to 1.10).",
        (
            "A paper claims: Rings are fast. This is not decided: one of its numbers has no run. "
            "To decide it: a run of suite none that has its cases."
        ),
        "A paper claims: Rings are fast. No run decides this claim.",
        "VERDICT CHANGED: A paper claims: Rings are fast. This is refuted: slow: 1.00 s (0.900 to 1.10).",
    ]
    assert decide(Claim(text="t", place="p", would_decide="a GPU"), {}).remedy == ""
    model = {"r": [record("ring", 1.0, 0.9, 1.1, network="lan")]}
    simulated = decide(Claim(**claim, clauses=[fast, slow], here=NO), model)
    assert (simulated.word, simulated.answer, simulated.is_surprising) == (MODEL, NO, False)
    model = {"r": [record("ring", 1.9, 1.5, 2.1, network="lan")]}
    assert [decide(Claim(**claim, clauses=each), model).answer for each in ([fast], [fast, faster])] == [YES, OPEN]
    assert replace(simulated, claim=replace(simulated.claim, here=YES)).verdict.sentence.startswith(
        "VERDICT CHANGED: A paper claims: Rings are fast. This is refuted by the model: slow: "
    )
    shown = [*(one.verdict for one in decisions), summary(decisions), summary([decisions[3]]), simulated.verdict]
    assert {verdict.word for verdict in shown} == words("claims")
    assert [exit_code([verdict]) for verdict in shown] == [0, 0, 0, 0, 1, 0, 3, 0]
    source = Source("A paper", "its authors", [decisions[1].claim])
    (table,) = document([source], runs).sections[-1].tables
    assert [(row[0], row[1], row[-3]) for row in table.rows][:2] == [
        ("Rings are fast (s)", "\N{BALLOT X} no", "measured here (run r)"),
        ("- fast: 1.00 s (0.900 to 1.10)", "\N{CHECK MARK} yes", "measured here (run r)"),
    ]


def test_a_clause_is_decided_by_measurements_and_trainings_not_by_what_a_model_assumes():
    """Seconds of a simulated clock are the model's, though gradients are real."""
    for field, fields, kind in [
        ("step_seconds", {"launches": 3}, Kind.HERE),
        ("step_seconds", {"network": "lan"}, Kind.MODEL),
        ("seconds_to_target", {"network": "lan"}, Kind.MODEL),
        ("staleness_mean", {"network": "lan"}, Kind.MODEL),
        ("final_accuracy", {"network": "lan"}, Kind.TRAINED),
        ("epochs_to_target", {"network": "lan"}, Kind.TRAINED),
        ("compression_ratio", {"network": "lan"}, Kind.TRAINED),
    ]:
        records = [Record(aggregation="ring", seed=seed, **{field: 1.0}, **fields) for seed in (1, 2)]
        (clause,) = decided(records, field, case=RING, above=0.5).clauses
        assert clause.kind == kind, field


def test_every_clause_says_what_could_refute_it_or_what_it_assumes():
    """Decided by the kept records of the reports, as the page of claims is."""
    runs = {clause.run for claim in claims() for clause in claim.clauses}
    kept = {run: _records(ROOT / "reports/data" / run) for run in runs} | {BY_OTHERS: measured_by_others()}
    for claim in claims():
        decision = decide(claim, kept)
        assert all(clause.clause.could_fail for clause in decision.clauses)
        assert all(clause.clause.assumes for clause in decision.assumed), claim.text
        assert decision.assumed or not any(clause.clause.assumes for clause in decision.clauses), claim.text


def test_numbers_have_the_units_that_people_read():
    for field, limits, value, number, limit in [
        ("step_seconds", {"by": RING, "below": 1}, 0.877, "87.7 %", "below 100 %"),
        ("step_seconds", {"by": RING, "above": 10}, 26.0, "26.0 times", "above 10"),
        ("final_accuracy", {"minus": RING, "above": -0.01}, -0.00195, "-0.2 points", "above -1 points"),
        ("hours_of_64_epochs", {"below": 24}, 18.6, "18.6 hours", "below 24 hours"),
        ("efficiency", {"above": 0.9}, 0.505, "0.505", "above 0.9"),
        ("diverged", {"above": 0.5}, 1.0, "100.0 %", "above 50 %"),
        ("final_loss", {"minus": RING, "above": -1e-9, "below": 1e-9}, 0.0, "0.00", "-1e-09 to 1e-09"),
    ]:
        clause = Clause(run="r", field=field, case={}, **limits)
        assert (clause.shown(value), clause.limit) == (number, limit)


def test_what_others_measured_decides_claims_if_it_is_of_several_jobs():
    """Times on Leonardo's 2,048 nodes: each is of one job, which does not show how jobs vary."""
    (ring,) = [claim for claim in claims() if claim.text.startswith("A ring allreduce of 512 MiB")]
    records = measured_by_others()
    decision = decide(ring, {BY_OTHERS: records})
    assert decision.word == OPEN
    assert [clause.means for clause in decision.clauses] == ["measured by others"] * 3
    assert decision.deciding.doubt == "1 job"
    records = [record.but() for record in records]
    for record in records:
        record.samples = {
            job: record.but(time_p50_seconds=(1 + job / 1e3) * record.time_p50_seconds) for job in range(3)
        }
    assert decide(ring, {BY_OTHERS: records}).word == NO == ring.here


@pytest.mark.slow
def test_every_clause_has_its_cases_in_a_shipped_suite():
    """A side is one case with its seeds."""
    reports = tomllib.loads((ROOT / "reports/reports.toml").read_text())["report"]
    commands = {one["name"]: re.search(r"hpcdl run (?:suites/)?([\w-]+)", one["command"]) for one in reports}
    assert len(claims()) >= 20
    cases = {}
    for known in (clause for claim in claims() for clause in claim.clauses):
        name = commands[known.run][1] if known.run in commands else known.run
        if name == BY_OTHERS:
            cases[name] = measured_by_others()
        if name not in cases:
            file = ROOT / "suites" / f"{name}.toml"
            elsewhere = ["case.dataset=digits"] * ('"fashion_mnist"' in file.read_text())  # which may be missing
            whole = suite.load(file, elsewhere, check=False)
            cases[name] = [Record.of(case.fields()) for case in whole.cases]
        for case in filter(None, (known.case, known.by, known.minus)):
            rows = [row for row in cases[name] if all(str(row.stated(key)) == str(case[key]) for key in case)]
            alike = {json.dumps({**row.settings, "seed": 0}, sort_keys=True) for row in rows}
            assert len(alike) == 1, (known, case, alike)


def test_records_of_version_1_0_decide_claims(hand, tmp_path):
    hand.case([[10.0] * 3], kind="collective", collective="allreduce", aggregation="ring", ranks=1)
    hand.read()
    (tmp_path / "old.json.gz").write_bytes(gzip.compress(lzma.decompress(packed(read(hand.folder)))))
    (record,) = _records(tmp_path / "old")
    assert record.aggregation == "ring"


def test_a_run_that_contradicts_a_claim_fails_the_command(hand, tmp_path, capsys, refused):
    """Written by hand: RDMA that is slower than TCP."""
    for name, ms in (("rdma-100g", 100.0), ("tcp-100g", 10.0)):
        network = {"network": name, "settings": {"network": name}, "warmup_steps": 0}
        whole = {"kind": "collective", "collective": "allreduce", "dtype": "float32", "message_bytes": 1024}
        hand.case([[ms] * 3], aggregation="halving_doubling", correct=True, ranks=32, **whole, **network)
    hand.read()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "rdma-tcp").symlink_to(hand.folder)
    (tmp_path / "runs" / "staleness.json.xz").write_bytes(b"half")
    assert main(["claims", str(tmp_path / "runs")]) == 1
    ended = capsys.readouterr()
    assert "VERDICT CHANGED: FireCaffe claims: RDMA communicates faster" in " ".join(ended.out.split())
    assert "This is refuted by the model" in " ".join(ended.out.split())
    assert ended.err.startswith(f"hpcdl: {tmp_path}/runs/staleness.json.xz: no records of hpcdl: ")
    assert ended.err.endswith(": its claims are not decided\n")
    assert main(["claims", str(tmp_path / "runs"), "--failed", "--source", "firecaffe"]) == 1
    text = capsys.readouterr().out
    assert "These runs decide none of 14 claims." in text
    assert "26.0" not in text
    assert main(["claims", str(tmp_path / "runs"), "--open", "--source", "lecture"]) == 3
    text = capsys.readouterr().out
    assert f"-hpcdlrunsuites/minima.toml-o{tmp_path}/runs/minima" in "".join(text.split())
    assert "seeds" not in text
    assert all(len(line) <= 80 for line in text.splitlines() if str(tmp_path) not in line)
    assert re.search(r"^claim +verdict +number +limit$", text, re.MULTILINE)
    unknown = refused("claims", tmp_path, "--source", "lectures")
    assert unknown == "hpcdl: no source 'lectures'; did you mean 'lecture'?\n"
    assert refused("claims", tmp_path / "none")
    assert main(["claims", str(tmp_path), "--source", "distbelief"]) == 3


@pytest.mark.slow
def test_each_result_would_decide_otherwise_on_the_other_side_of_its_limit():
    """The reports' records, of which one side is moved; accuracies stay between 0 and 1."""
    runs = {BY_OTHERS: measured_by_others()}
    moved = Counter()
    for claim in claims():
        for clause in claim.clauses:
            if clause.run not in runs:
                runs[clause.run] = _records(ROOT / "reports/data" / clause.run)
        for decision in decide(claim, runs).clauses:
            assert decision.verdict != ABSENT, decision.clause.text
            if decision.kind in DECIDE and decision.verdict in {YES, NO}:
                clause = decision.clause
                records = _moved(decision, runs[clause.run])
                (after,) = decide(Claim(text="t", place="s", clauses=[clause]), {clause.run: records}).clauses
                assert after.verdict != decision.verdict, (clause, decision.value, after)
                moved[decision.verdict, after.verdict] += 1
    assert moved[YES, NO] > 40
    assert moved[NO, YES] >= 3
    assert moved[YES, OPEN] < 3


def _moved(decision, records):
    """Return records of which those of the clause's case have numbers that lie beyond the limit."""
    clause, (value, low, high) = decision.clause, decision.value
    above, below, confirmed = clause.above, clause.below, decision.verdict == YES
    up = (above is None) == confirmed  # the number has to grow
    limit = below if above is None else above
    if clause.minus:
        target = limit + (1 if up else -1) * (0.6 * (high - low) + 1e-9)
    else:
        target = limit * (1.02 * min(high / low if low else 1e3, 1e3) ** 0.6) ** (1 if up else -1)
    if None not in {above, below} and not confirmed:
        target = (above + below) / 2

    def change(known):
        new = known + target - value if clause.minus else known * target / value
        return min(max(new, 0.0), 1.0) if clause.field == "final_accuracy" else new

    field, stem = clause.field, clause.field.removesuffix("_seconds")
    names = (field, f"{field}_low", f"{field}_high", f"{stem}_low_seconds", f"{stem}_high_seconds")

    def moved(record):
        if record.error or any(str(record.stated(key)) != str(clause.case[key]) for key in clause.case):
            return record
        if clause.field == "diverged":
            return record.but(diverged_step=1 if up else None)
        known = [name for name in names if record.values.get(name) is not None]
        new = {name: change(record.values[name]) for name in known}
        made = record.but(**(new if math.isfinite(value) else {clause.field: 1e-3}))
        made.samples = {launch: moved(one) for launch, one in record.samples.items()}
        return made

    return [moved(record) for record in records]
