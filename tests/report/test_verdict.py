"""The verdict begins with the answer to the suite's question, and fits a terminal."""

from dataclasses import replace

import pytest
from conftest import Hand

from hpcdl.report.contents import document
from hpcdl.report.formats.verdicts import words
from hpcdl.report.render import render
from hpcdl.report.run.findings import Findings, findings
from hpcdl.report.sections import scaling

from .conftest import operation, steps

ANSWERED = "[suite]\nname = 's'\nanswer = '{}'\n"


def verdict(run, form="md"):
    """Lines of the verdict, without those that are empty."""
    title, end = ("## Verdict\n", "\n## ") if form == "md" else ("VERDICT\n", "\n\n")
    page = render([run], form)
    return [line for line in page[page.index(title) :].removeprefix(title).split(end)[0].splitlines() if line]


@pytest.mark.parametrize(
    "methods, line",
    [
        (
            {"ring": {1: 80, 2: 41, 4: 40}},
            "stays near-linear up to 2 ranks with a ring: efficiency 0.976; on 4 the efficiency is 0.500.",
        ),
        # on the most ranks, though on fewer numbers of them
        (
            {"ring": {1: 80, 2: 40.5}, "tree": {1: 80, 4: 21}},
            "stays near-linear on 4 ranks with a tree: efficiency 0.952.",
        ),
        (
            {"ring": {1: 80, 2: 60, 4: 45, 8: 50}},
            "is not near-linear on 8 ranks: efficiency 0.200; the largest speedup is 1.78, on 4.",
        ),
        # no efficiency below the limit is shown as the limit
        ({"ring": {1: 80, 2: 44.45}}, "is not near-linear on 2 ranks: efficiency 0.8999."),
        ({"ring": {1: 80, 2: 60, 4: 40}}, "is not near-linear on 2 ranks: efficiency 0.500 on 4 ranks."),
    ],
)
def test_near_linear_or_not_is_the_first_line_of_training(hand, methods, line):
    hand.launches = 2
    for scheme, times in methods.items():
        for ranks, ms in times.items():
            hand.train([steps(ms)] * ranks, aggregation=scheme)
    run = hand.read(suite_text=ANSWERED.format("scaling"))
    first, *others = verdict(run)
    assert first == f"LeNet-5 {line}"
    assert not [other for other in others if other.startswith("- On ")]  # no ranks have several methods
    word = document(*findings([replace(run, complete=True)])).verdicts[0].word
    assert word == ("good" if line.startswith("stays") else "answered")


def test_a_verdict_is_of_the_section_that_answers(hand):
    """A near-linear training is no good answer to a question on sharding."""
    hand.launches = 2
    for training, times in (("synchronous", (80, 41)), ("zero(stage=3)", (80, 60))):
        for ranks, ms in enumerate(times, 1):
            hand.train([steps(ms)] * ranks, training=training)
    for answer, word in (("scaling", "good"), ("sharding", "answered")):
        run = replace(hand.read(suite_text=ANSWERED.format(answer)), complete=True)
        assert document(*findings([run])).verdicts[0].word == word


def two_networks(hand, answer="answer = 'scaling'"):
    """A training that is near-linear on 2 of 4 ranks, and a network whose computing does not scale."""
    hand.launches = 2
    for ranks, ms in ((1, 80), (2, 41), (4, 40)):
        hand.train([steps(ms)] * ranks, model="wide", compute=[ms - 1] * ranks)
    evaluations = [(10, 1.0, 0.5, 0.25, 0.8, 640), (20, 2.0, 0.5, 0.25, 0.9, 1280)]
    for ranks, ms in ((1, 20), (2, 18)):
        hand.train([steps(ms)] * ranks, model="narrow", compute=[ms - 1] * ranks, evaluations=evaluations)
    return hand.read(suite_text=f"[suite]\nname = 's'\n{answer}")


def test_the_sections_that_the_suite_names_answer_first_and_have_the_main_figure(hand):
    run = two_networks(hand)
    reached = "The final accuracy of synchronous training with batches of 64 images is 90.0 %, with one seed (narrow, 2 ranks)."
    scaled = "Wide stays near-linear up to 2 ranks with a ring"
    answers = {"'accuracy'": (reached, "Accuracy"), "['scaling', 'accuracy']": (scaled, "Scaling")}
    for answer, (first, main) in answers.items():
        named = replace(run, suite=f"[suite]\nanswer = {answer}")
        headline, *others = verdict(named)
        assert headline.startswith(first)
        assert any(line.endswith(reached) for line in (headline, *others))
        assert document(*findings([named]), charts=True).main == main


def test_schedules_of_a_pipeline_are_answered_with_thing_size_and_certainty(hand):
    for schedule, ms, size in (("gpipe", 20, 8 << 20), ("1f1b", 25, 2 << 20)):
        mesh = {"parallelism": "pipeline(pipeline=2)", "stages": 2, "microbatches": 4}
        training = f"pipeline(schedule={schedule})"
        hand.train([steps(ms)] * 2, training=training, compute=[15, 15], activation_bytes_per_rank=size, **mesh)
    assert verdict(hand.read({"cpu": {"physical_cores": 2}}, suite_text=ANSWERED.format("step_parts")))[0] == (
        "1F1B needs 25 % of GPipe's memory for activations; its ranks idle for 40.0 % of a step, GPipe's for 25.0 % "
        "(LeNet-5, 2 stages, 4 microbatches, 2 ranks)."
    )


def test_a_training_that_diverged_has_a_word_in_place_of_an_accuracy(hand):
    """Nor does it reach its target: an accuracy without finite parameters is that of any class."""
    rows = [(4, 1.0, 0.1, 0.5, 0.95, 64), (8, 2.0, 0.2, float("nan"), float("nan"), 128)]
    for seed, seen in ((1, rows), (2, rows[:1]), (3, rows)):
        hand.train([steps(20)] * 2, evaluations=seen, target_accuracy=0.9, seed=seed)
    run = hand.read(suite_text=ANSWERED.format("accuracy"))
    first, _, second, *others = verdict(run)
    assert first == "Training diverged with every method (LeNet-5, 2 ranks)."
    assert second.startswith("DIVERGED: 2 cases of 3. ")
    assert "- 1 of 3 cases reached the target accuracy (LeNet-5, 2 ranks)." in others
    page = render([run], "md")
    assert "| 95.0 %, 2 of 3 diverged at step 8 |" in " ".join(page.split())
    assert "2 cases diverged" in page
    assert "The first case diverged at step 8 on rank 0: " in page and " (2 ranks, seed 1)." in page


def test_one_size_on_several_numbers_of_ranks_is_one_line(hand):
    network = {"network": "lan", "settings": {"network": "lan"}}
    for ranks, fast in ((2, "ring"), (4, "tree"), (8, "tree")):
        for scheme in ("ring", "tree"):
            operation(hand, scheme, 1024, [1.0 if scheme == fast else 2.0], ranks=ranks, **network)
    run = hand.read(suite_text=ANSWERED.format("collectives"))
    assert verdict(run)[0] == (
        "For an allreduce of 1 KiB (lan, 1 rank per node) a ring is fastest on 2 ranks, and a tree is fastest on 4 to 8 "
        "ranks, 2.00 times as fast as a ring on 8 ranks."
    )
    brief = render([run], "md")
    assert "### allreduce, 1 KiB, float32, simulated on lan, 1 rank per node\n" in brief
    assert "\n| 8     | tree          |" in brief  # one table, a row for each number of ranks


def test_a_verdict_has_at_most_16_lines_on_a_terminal(hand):
    for number in range(15):
        operation(hand, f"a_scheme_with_a_long_name_{number}", 4 << number, steps(1.0), ranks=2)
        operation(hand, "other", 4 << number, steps(2.0), error="ValueError: odd" if number < 11 else None)
    lines = verdict(hand.read(), "summary")
    assert len(lines) <= 16
    assert all(len(line) <= 80 for line in lines)
    assert sum(line.startswith("- FAILED") for line in lines) == 3
    assert any("more in report.html" in line for line in lines)


def test_each_sentence_on_a_run_appears(tmp_path):
    hands = [Hand(tmp_path / name) for name in "abc"]
    for hand, fields in zip(hands[:2], ({"error": "no memory"}, {}), strict=True):
        hand.train([steps(20)], **fields)
    runs = [hands[0].read(), hands[1].read(complete=True), replace(two_networks(hands[2]), complete=True)]
    assert {document(found).verdicts[0].word for found in findings(runs)} == words("run")


def test_problems_of_a_suite_have_a_sentence_each(hand):
    """Problems on one and two ranks: simulated ones have a verdict, a measured one of one launch has none."""
    lan = {"network": "lan", "settings": {"network": "lan"}}
    for model, ms, fields in (("lenet5", 20.0, lan), ("vgg16", 21.0, lan), ("alexnet", 20.0, {})):
        hand.train([[40.0] * 20], model=model, **fields)
        for method, more in (({}, 0), ({"training": "layerwise"}, 1)):
            hand.train([[ms + more] * 20] * 2, model=model, **method, **fields)
    answer = scaling.answer(Findings(hand.read(), "run"))
    says = "Simulated LeNet-5 stays near-linear on 2 ranks with synchronous training: efficiency 1.00."
    assert answer.headline == says
    assert answer.details[0].startswith("Simulated VGG-16 stays near-linear on 2 ranks ")
    assert answer.details[1].startswith("No verdict on near-linear scaling of AlexNet at 2 ranks: ")
    both = "On 2 ranks 2 of 2 methods are near-linear for simulated LeNet-5: synchronous training and layerwise summation."
    assert answer.details[2] == both


def test_one_network_of_several_that_is_near_linear_is_said_in_one_sentence(hand):
    for model, ms in (("lenet5", 20.0), ("nin", 40.0), ("vgg16", 50.0)):
        for ranks, step in ((1, 40.0), (2, ms)):
            hand.train([[step] * 20] * ranks, model=model, network="lan", settings={"network": "lan"})
    answer = scaling.answer(Findings(hand.read(), "run"))
    says = "LeNet-5 stays near-linear on 2 ranks with a ring: efficiency 1.00; NiN and VGG-16 do not."
    assert answer.headline == says
