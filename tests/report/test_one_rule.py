"""The same two sides have one verdict in every section that judges, and in none if they are equal."""

import numpy as np
import pytest

from hpcdl.analysis.run.deciding import rivals
from hpcdl.analysis.run.record import Record
from hpcdl.report.run import operations
from hpcdl.report.run.findings import Findings
from hpcdl.report.sections import accuracy, compression, contrast, step_ratios, waiting

TAKEN = {"wall_ns": 10**9, "busy_ns": 10**9, "steal_ns": 10**9 // 2}
OPERATION = {"kind": "collective", "collective": "allreduce", "dtype": "float32", "warmup_steps": 0}
EXCHANGE = {"kind": "pairwise", "warmup_steps": 0, "message_bytes": 64}
SLOW = {"straggler": "rank 1 5x slower", "settings": {"straggler": {"rank": 1, "factor": 5}}}


def timed(hand, side, times, *, taken=(), **fields):
    """Write the launches of one side; ``taken``: those that were disturbed."""
    ranks = fields.pop("on", 2)
    for launch, ms in enumerate(times):
        case = [[ms] * 4] * ranks
        counters = {"counters": [TAKEN] * ranks} if launch in taken else {}
        if "kind" in fields:
            hand.case(case, launch=launch, **fields, **side, **counters)
        else:
            hand.train(case, launch=launch, **{"warmup_steps": 0, **fields}, **side, **counters)


def judged(view, quantity):
    return lambda findings: view.judged(findings, quantity)[0][0].judged


def of_contrast(findings):
    return contrast.pairs(findings)[0].judged.swapped


def of_collectives(findings):
    """The standing has the fastest first."""
    (standing,) = operations.standings(findings).values()
    (verdict,) = standing.judged.values() or [None]
    first = operations.ranked(standing.peers)[:1]
    return verdict and (verdict if first[0].aggregation == "tree" else verdict.swapped)


STEP, TIME = Record.step_seconds, Record.time_p50_seconds
SECTIONS = {
    "contrast of steps": ({"aggregation": "ring"}, {"aggregation": "tree"}, {}, "", of_contrast),
    "contrast of operations": ({"aggregation": "ring"}, {"aggregation": "tree"}, OPERATION | {"message_bytes": 64}, "", of_contrast),
    "collectives": ({"aggregation": "ring"}, {"aggregation": "tree"}, OPERATION | {"message_bytes": 64}, "collectives", of_collectives),
    "overlap": ({"training": "synchronous"}, {"training": "layerwise"}, {}, "overlap", judged(step_ratios.SAVING, STEP)),
    "sharding": ({"training": "synchronous"}, {"training": "zero(stage=1)"}, {}, "sharding", judged(step_ratios.SHARDED, STEP)),
    "splits": ({}, {"parallelism": "model(data=1)"}, {}, "splits", judged(step_ratios.SPLIT, STEP)),
    "batches": ({"global_batch": 1}, {"global_batch": 2}, {"on": 1}, "batch_times", judged(step_ratios.BATCHES, STEP)),
    "compression": ({}, {"compression": "fp16"}, {}, "compression", lambda f: compression.compared(f, f.problems[0])[0].judged),
    "costs": ({"aggregation": "raw"}, {"aggregation": "fabric"}, EXCHANGE, "costs", lambda f: step_ratios.measured_costs(f)[0].judged),
    "stragglers": ({}, SLOW, {}, "stragglers", lambda f: waiting.STRAGGLER.judged(f, Record.images_per_second)[0][0].judged.swapped),
}  # fmt: skip
NOISY = (10.0, 11.5, 9.0)
SCENARIOS = {
    "a true difference": ((10.0, 10.1, 10.2), (12.0, 12.2, 12.2), "more", ""),
    "noise that both share": ((10.0, 12.0, 14.0), (10.5, 12.6, 14.6), "more", ""),
    "equal sides": (NOISY, NOISY[::-1], "open", "chance"),
    "one launch": ((10.0,), (12.0,), "open", "one launch"),
    "a disturbed side": ((10.0, 10.1, 10.2), (12.0, 12.2, 12.2), "open", "disturbed"),
    "a disturbed launch": ((10.0, 10.1, 10.2, 10.0), (12.0, 12.2, 12.2, 60.0), "more", ""),
}
DISTURBED = {"a disturbed side": range(3), "a disturbed launch": [3]}


def verdict_of(section, hand, times, *, taken=()):
    """Return word and reason of a section on two sides; ``times``: of their launches (ms)."""
    base, changed, fields, answer, verdict = SECTIONS[section]
    timed(hand, base, times[0], **fields)
    timed(hand, changed, times[1], taken=taken, **fields)
    asked = f"answer = '{answer}'" if answer else ""
    made = verdict(Findings(hand.read(suite_text=f"[suite]\nname = 's'\n{asked}\n"), "run"))
    return (made.word, made.reason) if made else ("open", "disturbed")  # a disturbed operation has no place at all


def six(hand, logs):
    """Return whether contrast and ranking tell any of six schemes apart; both tell the same ones."""
    schemes = ("ring", "tree", "butterfly", "bine", "swing", "native")
    for scheme, times in zip(schemes, 10 * np.exp(logs), strict=True):
        timed(hand, {"aggregation": scheme}, times, message_bytes=64, **OPERATION)
    found = Findings(hand.read(suite_text="[suite]\nname = 's'\n"), "run")
    words = {pair.other.name: pair.word for pair in contrast.pairs(found)}
    (standing,) = operations.standings(found).values()
    apart = {r.aggregation for r in operations.ranked(standing.peers)[1:] if not standing.place(r)}
    assert {name for name, word in words.items() if word == "better"} == apart
    return bool({"better", "worse"} & {*words.values()}), bool(apart)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_all_sections_have_one_verdict_on_one_pair(hand, scenario):
    first, other, word, reason = SCENARIOS[scenario]
    made = type(hand)
    verdicts = {
        name: verdict_of(name, made(hand.folder / str(number)), (first, other), taken=DISTURBED.get(scenario, ()))
        for number, name in enumerate(SECTIONS)
    }
    assert set(verdicts.values()) == {(word, reason)}, verdicts


def test_six_equal_schemes_have_the_same_words_in_the_contrast_and_in_the_ranking(hand):
    random = np.random.default_rng(7)
    for number in range(4):
        slower = np.log(1 + 0.3 * (number == 3) * np.array([0, 1, 0, 0, 1, 0]))[:, None]
        told = six(type(hand)(hand.folder / str(number)), 0.02 * random.normal(size=(6, 3)) + slower)
        assert told == (number == 3, number == 3)


def test_a_diverged_seed_is_the_worst_in_the_contrast_and_in_the_ranking(hand):
    for seed in range(5):
        for training, reached in (("synchronous", 0.9 + seed / 1000), ("layerwise", 0.8)):
            lost = training == "layerwise" and seed < 5
            evaluations = [(4, 1.0, 0.1, np.nan if lost else 0.3, 0.1 if lost else reached, 64)]
            hand.train([[10.0] * 4] * 2, training=training, seed=seed, warmup_steps=0, evaluations=evaluations)
    compare = "compare = {training = ['synchronous', 'layerwise'], measure = 'final_accuracy'}"
    found = Findings(hand.read(suite_text=f"[suite]\nname = 's'\n{compare}\n"), "run")
    (pair,) = contrast.pairs(found)
    assert (pair.word, pair.judged.votes) == ("better", "5 of 5")
    best = next(each for each in accuracy._best(found) if each.criterion == accuracy.AT_END)
    assert [one.candidate.record.training for one in best.ranked] == ["synchronous", "layerwise"]
    assert rivals([best.ranked]) == [[]]
