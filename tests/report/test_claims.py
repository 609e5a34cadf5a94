"""Parts of claims are decided by the rules of the registry, by records of their kind."""

import gzip
import lzma
import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest, t

from hpcdl import suite
from hpcdl.analysis.network.clusters import records as measured_by_others
from hpcdl.analysis.run.record import Record
from hpcdl.cli import main
from hpcdl.commands.claims import records_of
from hpcdl.report.claims import document, summary
from hpcdl.report.formats.verdicts import exit_code, words
from hpcdl.report.run.claims import (
    ABSENT,
    BY_OTHERS,
    NO,
    OPEN,
    YES,
    Claim,
    Clause,
    Kind,
    Part,
    Source,
    decide,
    matching,
    sources,
)
from hpcdl.trace.schema import packed, read

ROOT = Path(__file__).parents[2]
ONE, OTHER = {"training": "one"}, {"training": "other"}


def trained(side, values, field="final_accuracy", **fields):
    """Return a record for each seed from 1."""
    common = {"training": side, "network": "lan", "target_accuracy": 0.8, **fields}
    return [Record(seed=seed, **{field: value}, **common) for seed, value in enumerate(values, 1)]


def measured(side, seconds, **fields):
    """Return a record of several launches."""
    whole = Record(training=side, step_seconds=float(np.median(seconds)), **fields)
    whole.samples = {n: Record(training=side, step_seconds=one, **fields) for n, one in enumerate(seconds, 1)}
    return [whole]


def made(*clauses, kind=Kind.TRAINED, **keys):
    """Return a part; clauses have their keys beside run, field and case."""
    usual = {"run": "r", "field": "final_accuracy", "case": ONE}
    part = {"id": "X1", "report": "r", "kind": kind, "n": kind.looks, **keys}
    return Part(clauses=[Clause(**{**usual, **clause}) for clause in clauses], **part)


def decided(part, *records, **others):
    runs = {"r": [record for some in records for record in some], **others}
    return decide(Claim(id="X1", text="t", place="p", source="s", parts=[part]), part, runs)


LEVEL = np.array([0.8, 0.81, 0.79, 0.8, 0.8])
NOT_WORSE = {"minus": OTHER, "least": -0.01}


@pytest.mark.parametrize(("change", "word"), [(0.0, YES), (-0.01, OPEN), (-0.02, NO), (-0.0111, OPEN)])
def test_a_difference_is_decided_by_its_whole_interval(change, word):
    """Of 97.5 %, paired by seed."""
    noise = np.array([0.001, -0.001, 0.002, -0.002, 0.0])
    decision = decided(made(NOT_WORSE), trained("one", LEVEL + change + noise), trained("other", LEVEL))
    reach = t.ppf(0.9875, 4) * noise.std(ddof=1) / math.sqrt(5)
    assert decision.found[0].value == pytest.approx((change, change - reach, change + reach))
    assert (decision.word, decision.used) == (word, "5 of 10")


def test_a_limit_that_is_included_is_kept_by_equal_numbers():
    sides = trained("one", [0.79] * 5), trained("other", [0.8] * 5)
    assert decided(made(NOT_WORSE), *sides).word == YES
    assert decided(made({"minus": OTHER, "above": -0.01}), *sides).word == NO
    assert decided(made({"minus": OTHER, "below": -0.01}), *sides).word == NO
    assert decided(made({"minus": OTHER, "most": -0.01}), *sides).word == YES
    assert decided(made({"minus": OTHER, "least": -0.005, "most": 0.005}), *sides).word == NO
    more = trained("one", [0.81] * 5), sides[1]
    assert decided(made({"minus": OTHER, "most": 0}), *more).word == NO, "a limit of 0 is one"


def test_fewer_seeds_than_planned_decide_nothing():
    sides = trained("one", [0.7] * 4), trained("other", LEVEL)
    decision = decided(made(NOT_WORSE), *sides)
    assert (decision.word, decision.doubt, decision.used) == (OPEN, "4 of 5 seeds", "4 of 10")
    failed = trained("one", [None], error="rank 0: OSError: full")[0].but(seed=5)
    seeds = [*sides[0], failed, *[record.but(seed=record.seed + 5) for record in sides[0]]]
    more = trained("other", [*LEVEL, *LEVEL])
    assert decided(made(NOT_WORSE), seeds, more).doubt == "some seeds without a number"  # and none is replaced


def test_a_second_look_counts_if_the_first_is_open_and_with_all_of_its_seeds():
    base, worse = [0.8] * 10, [0.8, 0.82, 0.78, 0.8, 0.8, *[0.8] * 5]
    sides = trained("one", worse), trained("other", base)
    assert decided(made(NOT_WORSE), sides[0][:5], sides[1]).used == "5 of 10"
    first = decided(made(NOT_WORSE), sides[0][:9], sides[1][:9])
    assert (first.word, first.used, first.doubt) == (OPEN, "5 of 10", "")
    second = decided(made(NOT_WORSE), *sides)
    assert (second.word, second.used) == (YES, "10 of 10")
    early = decided(made(NOT_WORSE), trained("one", [0.8] * 5 + [0.1] * 5), sides[1])
    assert (early.word, early.used) == (YES, "5 of 10")
    assert decided(made(NOT_WORSE, n=[8]), *sides).used == "8 of 8"


@pytest.mark.parametrize(
    ("lost", "every", "word"), [(5, 5, NO), (4, 5, OPEN), (9, 10, NO), (8, 10, OPEN), (10, 12, NO)]
)
def test_if_a_training_diverges_seeds_vote(lost, every, word):
    """At 10 % of accuracy; with the final accuracy below 15 %, a step, or values that cannot be sent."""
    nan = "rank 0: FloatingPointError: step 76: element 0 of the flat gradient is nan"
    ways = [{"final_accuracy": 0.149}, {"diverged_step": 3}, {"error": nan}]
    sides = trained("one", [0.8] * every), trained("other", [0.8] * every)
    for seed in range(lost):
        way = {"final_accuracy": None, **ways[seed % 3]}
        sides[0][seed] = sides[0][seed].but(**way)
    decision = decided(made(NOT_WORSE, n=[every]), *sides)
    assert (decision.word, decision.found[0].votes) == (word, (every - lost, every))
    assert decision.found[0].number.endswith(f"({every - lost} of {every} keep the limit)")
    assert decision.found[0].value.value == pytest.approx(-0.7 if lost > every / 2 else 0)


def test_a_missed_target_takes_infinitely_many_epochs():
    clause = {"field": "epochs_to_target", "by": OTHER, "above": 1}
    sides = trained("one", [None] * 5, "epochs_to_target"), trained("other", [1.0] * 5, "epochs_to_target")
    decision = decided(made(clause), *sides)
    assert (decision.word, decision.found[0].votes) == (YES, (5, 5))
    assert decision.found[0].number == "infinitely many times (5 of 5 keep the limit)"
    both = decided(made(clause), sides[0], [record.but(training="other") for record in sides[0]])
    assert both.word == NO  # infinite by infinite is 1


def test_of_several_numbers_all_must_hold_and_one_refutes_at_the_error_by_their_number():
    noise = np.array([0.002, -0.001, 0.001, -0.002, 0.0])
    change = t.ppf(0.9875, 4) * noise.std(ddof=1) / math.sqrt(5) * 1.05  # beyond at 2.5 %, not at 0.83 %
    sides = {"one": LEVEL + noise - change, "other": LEVEL, "third": LEVEL - 0.1}
    records = [trained(*side) for side in sides.items()]
    high, low = {"minus": OTHER, "least": 0.0}, {"minus": {"training": "third"}, "above": 0}
    assert decided(made(high), *records).word == NO
    assert decided(made(high, low), *records).word == OPEN
    assert decided(made(high, low, low), *records).found[0].verdict == OPEN
    assert decided(made(low, low), *records).word == YES
    absent = {"minus": {"training": "none"}, "above": 0}
    assert [decided(made(*some), *records).word for some in ([absent], [low, absent])] == [ABSENT, OPEN]
    assert decided(made(), *records).word == ABSENT


def test_a_share_of_seeds_has_exact_bounds():
    part = made({"field": "diverged", "above": 0.5})
    for lost, every, word in ((5, 5, OPEN), (10, 10, YES), (0, 10, NO), (8, 10, OPEN)):
        decision = decided(part, trained("one", [0.1] * lost + [0.8] * (every - lost)))
        expected = binomtest(lost, every).proportion_ci(0.975, "exact")
        assert (decision.word, decision.used) == (word, f"{every} of 10")
        assert decision.found[0].value == pytest.approx((lost / every, *expected))


def test_a_difference_of_shares_is_that_of_seeds_on_which_the_sides_differ():
    """The exact test of McNemar: of 60 seeds 12 diverge on one side alone, and none on the other alone."""
    part = made({"field": "diverged", "minus": OTHER, "below": 0}, n=[60])
    few, all_nodes = trained("one", [0.1] * 20 + [0.8] * 40), trained("other", [0.1] * 32 + [0.8] * 28)
    decision = decided(part, few, all_nodes)
    low, high = binomtest(0, 12).proportion_ci(0.975, "exact")
    assert decision.found[0].value == pytest.approx((-0.2, (2 * low - 1) / 5, (2 * high - 1) / 5))
    assert decision.word == YES
    assert decided(part, few, [record.but(training="other") for record in few]).word == OPEN


def test_a_contrast_is_the_weighted_sum_of_sides_and_may_be_reversed():
    """The effect of the period depends on the rate by 3 points."""
    sides = [trained(f"{period} {rate}", LEVEL[:4] - 0.03 * (period == rate)) for period in "ab" for rate in "ab"]
    pairs = [(1, "a a"), (-1, "b a"), (-1, "a b"), (1, "b b")]
    contrast = [(weight / 2, {"training": name}) for weight, name in pairs]
    inside = {"case": {}, "contrast": contrast, "least": -0.005, "most": 0.005}
    decision = decided(made(inside, n=[4], reversed=True), *sides)
    assert decision.found[0].value == pytest.approx((-0.03,) * 3)
    assert (decision.word, decision.found[0].verdict) == (YES, NO)
    equal = [[record.but(final_accuracy=0.8) for record in side] for side in sides]
    assert decided(made(inside, n=[4], reversed=True), *equal).word == NO
    assert decided(made(inside, inside, n=[4], reversed=True), *equal).word == NO


def test_of_several_cases_the_best_by_validation_counts():
    worse = trained("one", LEVEL, tuning_trials="0.1: 0.5, 0.2: 0.7")
    best = trained("two", LEVEL - 0.1, tuning_trials="0.1: 0.9, 0.2: 0.6")
    clause = {"case": [ONE, {"training": "two"}], "chosen": "validation", **NOT_WORSE}
    assert decided(made(clause), worse, best, trained("other", LEVEL)).word == NO


def test_columns_have_texts_or_match_expressions():
    """An untuned side names the keys in which it differs from the one whose rate it takes."""
    sides = trained("one", LEVEL), trained("one", LEVEL, tuning_like="training=other")
    untuned = "~(?!None$).*"
    found = {"None": 5, untuned: 5, "training=other": 5, "training": 0, "~.*": 5}
    for text, used in found.items():
        part = made({"case": {"training": "one", "tuning_like": text}, "least": 0.5})
        decision = decided(part, *sides)
        doubt = "several cases match" if text == "~.*" else ""
        assert (decision.found[0].used, decision.doubt) == (used, doubt), text


def test_a_time_is_compared_by_launches_of_one_or_two_runs():
    part = made({"field": "step_seconds", "by": OTHER, "least": 0.8, "most": 1.2}, kind=Kind.COMPUTED)
    ring, tree = np.array([1.0, 1.1, 0.9, 1.0, 1.05]), np.array([1.01, 1.1, 0.88, 1.0, 1.04])
    decision = decided(part, measured("one", ring), measured("other", tree))
    logs = np.log(ring / tree)
    reach = t.ppf(0.975, 4) * logs.std(ddof=1) / math.sqrt(5)
    assert decision.found[0].value[1:] == pytest.approx(np.exp([logs.mean() - reach, logs.mean() + reach]))
    assert (decision.word, decision.used) == (YES, "5 of 5")
    beside = made(
        {"field": "step_seconds", "by": OTHER, "by_run": "b", "scale": 0.5, "below": 1}, kind=Kind.MESSAGES
    )
    decision = decided(beside, measured("one", ring), b=measured("other", tree))
    assert decision.found[0].value.value == pytest.approx(0.5, rel=0.01)
    assert decided(part, measured("one", ring[:4]), measured("other", tree)).doubt == "4 of 5 launches"
    by_seed = [record for seed in range(5) for record in measured("one", ring[seed : seed + 1], seed=seed + 1)]
    for launch, record in enumerate(by_seed, 1):
        record.samples = {launch: record.samples[1]}
    assert decided(part, by_seed, measured("other", tree)).word == YES
    hidden = decided(beside, measured("one", [0.0] * 4 + [0.1]), b=measured("other", tree))
    assert (hidden.word, hidden.found[0].votes) == (YES, (5, 5))  # no logarithm
    shared = decided(part, measured("one", ring, oversubscribed=True), measured("other", tree))
    assert (shared.word, shared.doubt) == (OPEN, "ranks share cores")


@pytest.mark.parametrize(
    ("kind", "fields", "decides"),
    [
        (Kind.TRAINED, {"network": "lan"}, True),
        (Kind.TRAINED, {}, False),
        (Kind.TRAINED, {"network": "lan", "kind": "replay"}, False),
        (Kind.COMPUTED, {}, True),
        (Kind.COMPUTED, {"network": "lan"}, False),
        (Kind.COMPUTED, {"kind": "replay"}, False),
        (Kind.MESSAGES, {"kind": "replay", "emulated": True}, True),
        (Kind.MESSAGES, {"kind": "collective"}, True),
        (Kind.MESSAGES, {"kind": "collective", "network": "lan"}, False),
        (Kind.OTHERS, {}, False),
    ],
)
def test_a_record_of_another_kind_decides_nothing(kind, fields, decides):
    """Seconds of a model, above all."""
    records = [record.but(**fields) for record in measured("one", [1.0, 1.1, 0.9, 1.0, 1.0])]
    records += (
        [record.but(seed=seed) for record in records for seed in range(2, 6)] if kind is Kind.TRAINED else []
    )
    decision = decided(made({"field": "step_seconds", "below": 5}, kind=kind), records)
    assert (decision.word == YES) is decides
    assert decides or decision.doubt == "records of another kind"


def test_what_others_measured_counts_by_job():
    jobs = [Record(suite=BY_OTHERS, training=side, step_seconds=time, settings={"job": job})
            for job in "abcdefgh" for side, time in (("one", 1.0), ("other", 2.0))]  # fmt: skip
    part = made({"field": "step_seconds", "by": OTHER, "share": True, "above": 0.5}, kind=Kind.OTHERS)
    decision = decided(part, jobs)
    assert decision.found[0].value == pytest.approx((1.0, *binomtest(8, 8).proportion_ci(0.95, "exact")))
    assert (decision.word, decision.used) == (YES, "8 jobs")


def test_sentences_counts_and_exit_codes():
    noise = np.array([0.001, -0.001, 0.002, -0.002, 0.0])
    records = {"r": [*trained("one", LEVEL + noise), *trained("other", LEVEL)]}
    limits = [{"above": -0.01}, {"above": 0.01}, {"above": 0}, {"minus": {"training": "none"}, "above": 0}]
    parts = [made({"text": "it changes by {}", "minus": OTHER, **limit}) for limit in limits]
    claim = Claim(id="X1", text="It is good", place="p", source="A paper", parts=parts)
    decisions = [decide(claim, part, records) for part in parts]
    assert [one.word for one in decisions] == [YES, NO, OPEN, ABSENT]
    number = "it changes by +0.0 percentage points (-0.2 to +0.2)"
    assert [one.verdict.sentence for one in decisions] == [
        f"A paper claims (X1): It is good. This is confirmed: {number}.",
        f"A paper claims (X1): It is good. This is refuted: {number}.",
        f"A paper claims (X1): It is good. This is open: {number}.",
        "A paper claims (X1): It is good. No run decides this claim.",
    ]
    shown = [*(one.verdict for one in decisions), summary(decisions), summary([decisions[3]])]
    assert {verdict.word for verdict in shown} == words("claims")
    assert [exit_code([verdict]) for verdict in shown] == [0, 0, 0, 0, 0, 3]
    page = document([Source("A paper", "its authors", [claim])], records)
    counts, *_, table = [table for section in page.sections for table in section.tables]
    assert counts.rows[2] == ("trained", "1", "1", "1", "1")
    assert table.rows[0][1:-1] == (
        *("trained", "\N{CHECK MARK} confirmed", "+0.0 points (-0.2 to +0.2)"),
        *("> -1 points, from the sentence itself", "5 of 10"),
        *("all \N{LESS-THAN OR EQUAL TO} -1; open: contains -1", "r"),
    )


def test_of_many_numbers_the_sentence_has_the_lowest_and_the_highest():
    records = [trained(f"s{n}", LEVEL + n / 100) for n in (2, 0, 1, 4, 3)]
    clauses = [{"text": f"s{n} has {{}}", "case": {"training": f"s{n}"}, "above": 0.5} for n in range(5)]
    finding = decided(made(*clauses), *records).finding
    assert re.fullmatch(
        r"s0 has 80.0 % \(.*\) \(the lowest of 5 numbers\); s4 has 84.0 % .* \(the highest\)", finding
    )


def test_each_number_is_a_sentence_with_its_subject_and_no_seconds_of_a_model():
    claims = [claim for source in sources() for claim in source.claims]
    for part in (part for claim in claims for part in claim.parts):
        for clause in part.clauses:
            assert part.kind is not Kind.TRAINED or "second" not in clause.field, part.id
            assert {clause.above, clause.below, clause.least, clause.most} != {None}, part.id
            assert not clause.field.startswith("bytes_sent"), part.id
            assert len(clause.text.partition("{}")[0].split()) >= 2, clause.text
            assert not re.match(r"(it|they|this)\b", clause.text), clause.text
    for text in [claim.text for claim in claims]:
        assert len(text.split()) <= 24, text
        assert not re.search(r"[.;:]$|; ", text), text


def test_numbers_have_the_units_that_people_read():
    for field, limits, value, number, limit in [
        ("step_seconds", {"by": ONE, "below": 1}, 0.877, "0.877 times", "< 1"),
        ("step_seconds", {"by": ONE, "below": 1, "text": "{} of the sum stays exposed"}, 0.877, "87.7 %", "< 1"),
        ("step_seconds", {"by": ONE, "least": 10}, 26.0, "26.0 times", "\N{GREATER-THAN OR EQUAL TO} 10"),
        ("step_seconds", {"by": ONE, "above": 1}, 0.9, "0.900 times", "> 1"),
        ("final_accuracy", {"minus": ONE, "above": -0.01}, -0.00195, "-0.2 points", "> -1"),
        ("final_accuracy", {"minus": ONE, "least": -0.005, "most": 0.005}, 0.0, "+0.0 points", "-0.5 to 0.5"),
        ("diverged", {"above": 0.5}, 1.0, "100.0 %", "> 0.5"),
        ("compression_ratio", {"least": 1000}, 1210.0, "1210 times", "\N{GREATER-THAN OR EQUAL TO} 1000"),
    ]:
        clause = Clause(run="r", field=field, case={}, **limits)
        assert (clause.shown(value), clause.limit) == (number, limit)


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "suites/one-node.toml").exists(), reason="the registry's suites are not written")
def test_every_side_is_one_case_of_a_shipped_suite():
    """With its seeds. The data of L5 are those of an earlier suite."""
    reports = tomllib.loads((ROOT / "reports/reports.toml").read_text())["report"]
    commands = {one["name"]: one["command"] for one in reports}
    cases = {BY_OTHERS: measured_by_others()}
    parts = [one for source in sources() for claim in source.claims for one in claim.parts if one.id != "L5"]
    for part, clause in ((one, clause) for one in parts for clause in one.clauses):
        for run in clause.runs.keys() - cases.keys():
            command = commands.get(run, f"hpcdl run suites/{run}.toml")
            file = re.search(r"hpcdl run (?:suites/)?([\w-]+)", command)[1]
            globs = re.findall("--case '([^']+)'", command)
            whole = suite.load(ROOT / f"suites/{file}.toml", (), globs, full=True, check=False, elsewhere=True)
            cases[run] = [Record.of(case.fields()) for case in whole.cases]
        own = [clause.case] if isinstance(clause.case, dict) else clause.case
        sides = [(clause.run, case) for case in [case for _, case in clause.contrast] or own]
        if other := clause.by or clause.minus:
            sides.append((clause.by_run or clause.minus_run or clause.run, other))
        for run, case in sides:
            known = matching(cases[run], case)
            alike = {(row.settings.get("job"), row.configuration(), row.ranks) for row in known}
            assert len(alike) == 1 or (alike and run == BY_OTHERS), (part.id, run, case, alike)


def test_records_of_version_1_0_decide_claims(hand, tmp_path):
    hand.case([[10.0] * 3], kind="collective", collective="allreduce", aggregation="ring", ranks=1)
    hand.read()
    (tmp_path / "old.json.gz").write_bytes(gzip.compress(lzma.decompress(packed(read(hand.folder)))))
    (record,) = records_of(tmp_path / "old")
    assert record.aggregation == "ring"


def test_the_command_shows_what_runs_decide(tmp_path, capsys, refused):
    """What others measured is in the package; a run that cannot be read is named."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "staleness.json.xz").write_bytes(b"half")
    assert main(["claims", str(tmp_path / "runs"), "-o", str(tmp_path / "page.md")]) == 3
    ended = capsys.readouterr()
    assert ended.err.startswith(f"hpcdl: {tmp_path}/runs/staleness.json.xz: no records of hpcdl: ")
    assert ended.err.endswith(": its claims are not decided\n")
    assert "? no run, F5a: With suitable settings a large batch keeps the accuracy." in ended.out
    assert all(len(line) <= 80 for line in ended.out.splitlines())
    assert "one in twenty may be wrong by chance" in (tmp_path / "page.md").read_text()
    assert main(["claims", str(tmp_path / "runs"), "--failed", "--source", "firecaffe"]) == 3
    assert re.search(r"These runs decide none of \d+ claims", capsys.readouterr().out)
    assert main(["claims", str(tmp_path / "runs"), "--open", "--source", "lecture"]) == 3
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"measure FOLDER NAME` makes: .*\bminima, .*\bresnet\b", text)
    unknown = refused("claims", tmp_path, "--source", "lectures")
    assert unknown == "hpcdl: no source 'lectures'; did you mean 'lecture'?\n"
    assert refused("claims", tmp_path / "none")
