"""Different strategies for one problem, side by side."""

import json

import pytest

from hpcdl.analysis.run.record import Record
from hpcdl.report.render import render
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import problems, settings
from hpcdl.report.run.names import Names, in_words, several
from hpcdl.report.sections.accuracy import best_answer, courses

MOMENTUM = "sgd(momentum=0.9)"


def downpour(hand, seed=1, accuracy=0.9, **fields):
    updates = {0: [(10**9 + 10**7 * n, n % 4, n, 3 if n else 0, 0.1) for n in range(120)]}
    evaluations = [(10, 1.0, 0.5, 0.3, accuracy - 0.1, 640), (20, 2.0, 1.0, 0.3, accuracy, 1280)]
    method = {"training": "downpour(n_fetch=1)", "system": "Downpour", "optimizer": "sgd", "aggregation": "own"}
    case = {"updates": updates, "evaluations": evaluations, "memory": [4000] * 4, "seed": seed}
    hand.train([[10.0] * 60] * 4, common_clock=True, **case | method | fields)


def synchronous(hand, ranks=4, seed=1, accuracy=0.8, ms=20.0, **fields):
    evaluations = [(10, 1.0, 0.6, 0.3, accuracy - 0.1, 640), (20, 2.0, 1.2, 0.3, accuracy, 1280)]
    whole = {"optimizer": MOMENTUM, "evaluations": evaluations, "memory": [1200] * ranks, "parameters": 100}
    hand.train([[ms] * 30] * ranks, seed=seed, **whole | fields)


def section(page, title):
    return page[page.index(f"## {title}\n") :].split("\n## ")[0]


def test_strategies_share_a_table_and_what_differs_is_in_the_name(hand, row, whole):
    synchronous(hand, 1, ms=40.0)
    synchronous(hand)
    synchronous(hand, aggregation="none", ms=10.0)
    downpour(hand, discarded_share=0.125)
    page = render([hand.read()], "md")
    scaling = section(page, "Scaling")
    assert scaling.count("| method") == 1
    assert row(scaling, "synchronous, ring", "4")["step"] == "20.0 ms"
    assert row(scaling, "synchronous, none (no communication)", "4")["step"] == "10.0 ms"
    cells = row(scaling, "Downpour", "4")
    assert [cells[name] for name in ("step", "images/s", "efficiency")] == ["10.0 ms", "6400", "1.00"]
    assert "Step of Downpour: mean time in which all ranks together process one global batch" in scaling
    assert "Base 1 rank, step 40.0 ms." in scaling
    assert row(page, "Downpour", "Downpour") == ["Downpour", "Downpour", "downpour(n_fetch=1)", "own", "sgd"]
    staleness = section(whole(hand.read()), "Staleness")
    assert row(staleness, "Downpour")[2:6] == ["4", "1.00", "12.5 %", "3.00"]
    assert row(staleness, "Downpour")[-2:] == ["100.0 %", "0.0 %"]  # at 3, and at 4 or more


def test_memory_is_stated_for_a_method_alone_and_once_for_methods_alike(hand, row):
    synchronous(hand)
    alone = section(render([hand.read()], "md"), "Memory and consensus")
    assert row(alone, "ring", "4")[2:] == ["1.20 kB", "3.00"]
    synchronous(hand, training="layerwise")
    alike = section(render([hand.read()], "md"), "Memory and consensus")
    downpour(hand, global_batch=128)
    apart = section(render([hand.read()], "md"), "Memory and consensus")
    assert row(alike, "all 2") == row(apart, "all 2") == ["all 2", "1.20 kB", "3.00"]
    assert "layerwise" not in alike and row(apart, "Downpour", "4")[2] == "4.00 kB"


def test_virtual_time_is_called_so_and_stands_apart(hand, row):
    simulated = {"network": "lan", "settings": {"network": "lan"}}
    for told in ({}, simulated):
        synchronous(hand, **told)
        downpour(hand, **told)
    page = render([hand.read()], "md")
    line = "Final accuracies range from 80.0 % (synchronous training) to 90.0 % (Downpour), with one seed each (LeNet-5, 4 ranks"
    assert f"{line})." in page and f"{line}, lan)." in page
    settings = section(page, "Settings")
    assert row(settings, "LeNet-5")[1] == "measured"
    assert row(settings, "simulated LeNet-5")[1] == "simulated on lan, 1 rank per node"
    assert section(page, "Scaling").count("| method") == 2


OWN = ("own", "sgd", 0.1)
NAMES = {
    "one scheme": [("ring", "a", "ring")],
    "one strategy": [("a", "a", "own")],
    "schemes": [("ring", "a", "ring"), ("tree", "a", "tree")],
    "strategies": [("a", "a", "ring"), ("b", "b", "own")],
    "settings": [("a(k=1)", "a(k=1,s=2)", "own"), ("a(k=3)", "a(k=3,s=2)", "own")],
    "optimizers": [("sgd", "a", "", "sgd"), ("adam", "a", "", "adam")],
    "optimizers that follow from the strategy": [("a", "a", "", "sgd"), ("b", "b", "", "adam")],
    "rates": [
        ("a, sgd(momentum=0.9)", "a", "", "sgd(momentum=0.9)", 0.1),
        ("a, sgd(momentum=0.5), rate 0.1", "a", "", "sgd(momentum=0.5)", 0.1),
        ("a, sgd(momentum=0.5), rate 0.2", "a", "", "sgd(momentum=0.5)", 0.2),
        ("b", "b", "", "sgd(momentum=0.5)", 0.2),
    ],
    "buckets": [
        ("ring, buckets of 2 MiB during backward", "synchronous(bucket_bytes=2097152)", "ring"),
        ("ring, one sum after backward", "synchronous(bucket_bytes=0)", "ring"),
        ("tree, one sum after backward", "synchronous(bucket_bytes=0)", "tree"),
        ("layerwise", "layerwise(bucket_bytes=0)", "ring"),
    ],
    "literature": [
        ("Downpour", "asynchronous", *OWN, "Downpour"),
        ("Downpour(n_push=5)", "downpour(n_push=5)", *OWN, "Downpour"),
        ("SSP(3)", "ssp(bound=3)", *OWN, "SSP(3)"),
        ("2-softsync(scale_rate=staleness)", "softsync(collect=15,scale_rate=staleness)", *OWN, "2-softsync"),
        ("softsync(scale_rate=none)", "softsync(scale_rate=none)", *OWN, ""),
    ],
    "two of one name in the literature": [
        ("ssp", "ssp(bound=0)", *OWN, "BSP"),
        ("m_synchronous", "m_synchronous(collect=all)", *OWN, "BSP"),
    ],
}


@pytest.mark.parametrize("cases", NAMES.values(), ids=NAMES)
def test_names_tell_what_differs_and_no_more(cases):
    fields = ("training", "aggregation", "optimizer", "learning_rate", "system")
    records = [Record(ranks=4, **dict(zip(fields, values, strict=False))) for _, *values in cases]
    assert [*map(Names(records), records)] == [name for name, *_ in cases]


WORDS = [
    ({"training": "parameter_averaging"}, "parameter_averaging(period=10)", "parameter averaging every 10 steps"),
    ({"training": "ssp(bound=0)", "system": "BSP"}, "ssp(bound=0), rate 0.1", "BSP with rate 0.1"),
    ({"training": "asynchronous", "system": "Downpour"}, "Downpour, 8 trials", "Downpour with 8 trials"),
    ({"training": "ssp", "system": "SSP(3)"}, "SSP(3)(servers=2)", "SSP(3) on 2 servers"),
    ({"training": "synchronous"}, "synchronous, ring", "synchronous training with a ring"),
    ({"training": "synchronous"}, "synchronous, ring + power_sgd(rank=2)", "PowerSGD of rank 2 over a ring"),
    ({}, "tree + top_k(density=0.01,code=rice)", "top-k at 1 % of the entries coded as rice over a tree"),
    ({}, "ring + one_bit(error_feedback=False)", "1-bit SGD without error feedback over a ring"),
    ({}, "chain(segment_bytes=262144)", "chain in segments of 256 KiB"),
    ({}, "mine(alpha_beta=3)", "mine with alpha beta 3"),
    ({"compression": "power_sgd(rank=2)"}, "synchronous", "synchronous training with PowerSGD of rank 2"),
]


@pytest.mark.parametrize(("fields", "name", "words"), WORDS)
def test_a_sentence_has_the_literatures_name_and_what_differs_in_words(fields, name, words):
    assert in_words(name, Record(**fields)) == words


def test_lists_have_two_names_and_the_number_of_others():
    assert [several(["a", "b", "c", "d"][:count]) for count in range(5)] == [
        "-", "a", "a and b", "a, b and 1 other", "a, b and 2 others"
    ]  # fmt: skip


def test_four_criteria_have_a_winner_each_and_those_it_is_not_told_from(hand, row, whole):
    """Courses of accuracy are medians over seeds with their range."""
    for seed, more in ((1, 0.0), (2, 0.01), (3, 0.05)):
        synchronous(hand, seed=seed, accuracy=0.80 + more)
        synchronous(hand, seed=seed, accuracy=0.90 + more, training="layerwise")
        downpour(hand, seed=seed, accuracy=(0.93, 0.91, 0.95)[seed - 1])
    time, epochs = courses(Findings(hand.read(), "run"))
    assert tuple(time.series[-1].points[-1]) == pytest.approx((1.2, 0.81, 0.80, 0.85))
    assert [point.x for point in epochs.series[-1].points] == [1.0, 2.0]
    best = section(whole(hand.read()), "Best methods")
    columns = ("method", "ranks", "value", "tied with", "of")
    cells = row(best, "accuracy at the end", dataset="digits")
    assert [cells[name] for name in columns] == ["Downpour", "4", "93.0 %", "layerwise", "3"]
    cells = row(best, "accuracy within epochs", dataset="digits")
    assert [cells[name] for name in columns[:2]] == ["Downpour", "4"]
    synchronous(hand, seed=1, accuracy=0.1, training="pipeline")
    lone = section(whole(hand.read()), "Best methods")
    cells = row(lone, "accuracy at the end", dataset="digits")
    assert [cells[name] for name in columns[3:]] == ["layerwise and pipeline", "4"]


ETHERNET = [{"network": name, "settings": {"network": name}} for name in ("ethernet-1g", "ethernet-10g")]
LOWER = ") lower than Downpour."
OFTEN = "Downpour is the best method, alone or tied, in 8 of 8 comparisons, by four criteria"


@pytest.mark.parametrize(
    ("networks", "accuracy", "begins", "ends"),
    [
        ([{}], 0.8, "Synchronous training on 1 rank reaches a final accuracy ", LOWER),
        ([{}], 0.905, "Not decided whether methods differ: synchronous training on 1 rank ", LOWER),
        (ETHERNET, 0.5, OFTEN, " in 2 configurations."),
    ],
)
def test_the_best_methods_answer_how_far_the_last_ends_below_or_which_is_most_often_best(
    hand, networks, accuracy, begins, ends
):
    for given in networks:
        for seed, more, other in ((1, 0.0, 0.02), (2, 0.01, 0.0), (3, 0.02, 0.01)):
            synchronous(hand, 4 if given else 1, seed=seed, accuracy=accuracy + more, **given)
            downpour(hand, seed=seed, accuracy=0.91 + other, **given)
    asked = Findings(hand.read(suite_text="[suite]\nanswer = 'best_methods'"), "run")
    headline, details, *_ = best_answer(asked)
    assert headline.startswith(begins) and headline.endswith(ends)
    best = "Best by accuracy at the end: Downpour in 2 of 2 configurations."
    assert [*details][1:2] == [best] * (len(networks) - 1)
    assert best_answer(Findings(hand.read(), "run")) is None


def test_accuracies_are_within_the_budgets_of_all_and_images_a_second_are_one_number_on_a_page(hand, row, whole):
    """One of 28 measured steps pauses, which the median step does not show: 28 x 64 images in 680 ms."""
    synchronous(hand, ms=40.0)
    longer = [(10, 1.0, 0.6, 0.3, 0.7, 640), (20, 2.0, 1.2, 0.3, 0.75, 1280), (30, 3.0, 1.8, 0.3, 0.99, 1920)]
    hand.train([[20.0] * 29 + [140.0]] * 4, training="layerwise", evaluations=longer)
    page = whole(hand.read())
    best = section(page, "Best methods")
    for criterion, *expected in (
        ("accuracy at the end", "-", "layerwise", "4", "99.0 %"),
        ("accuracy within a time", "1.20 s", "synchronous", "4", "80.0 %"),
        ("images per second", "-", "layerwise", "4", "2635 images/s"),
    ):
        cells = row(best, criterion, dataset="digits")
        assert [cells[name] for name in ("budget", "method", "ranks", "value")] == expected
    assert row(section(page, "Scaling"), "layerwise")["images/s"] == "2635"


def test_the_steps_of_a_replay_are_those_of_its_name():
    replay = {"kind": "replay", "training": "synchronous", "aggregation": "ring", "ranks": 2, "warmup_steps": 1}
    lan = {"network": "lan", "warmup_steps": 0}
    older = {**lan, "planned_steps": 1, "steps": 1}  # of a version that did not state those of the suite
    for fields, words in (({}, ["2 steps"]), (lan, ["3 steps"]), (older, []), ({"kind": "train"}, ["3 steps"])):
        common = settings(problems([Record.of({**replay, "planned_steps": 3, **fields})])).common
        assert [word for word in common.split(", ") if "step" in word] == words


PROBLEMS = {
    "LeNet-5": [("", {"model": "lenet5"})],
    "replayed GoogLeNet, LeNet-5": [
        ("replayed GoogLeNet", {"model": "googlenet(auxiliary=False)", "kind": "replay"}),
        ("LeNet-5", {"model": "lenet5"}),
    ],
    "AlexNet, a user's network": [("mine:net", {"model": "mine:net(a=1)"}), ("AlexNet", {"model": "alexnet"})],
    "settings of one network": [
        ("DistBelief's image network with 25 maps", {"model": "locally_connected_vision(maps=25)"}),
        ("DistBelief's image network", {"model": "locally_connected_vision"}),
    ],
    "links, then a straggler": [
        ("lan", {"model": "lenet5", "network": "lan"}),
        ("wan", {"model": "lenet5", "network": "wan"}),
        ("wan, rank 1 2x slower", {"model": "lenet5", "network": "wan", "straggler": "rank 1 2x slower"}),
    ],
    "batches of one of two networks": [
        ("NiN, global batch 1", {"model": "nin", "global_batch": 1}),
        ("NiN, global batch 64", {"model": "nin", "global_batch": 64}),
        ("VGG-16", {"model": "vgg16", "global_batch": 64}),
    ],
}


@pytest.mark.parametrize("cases", PROBLEMS.values(), ids=PROBLEMS)
def test_problems_are_named_by_their_network_and_by_what_differs(cases):
    """The name is the literature's; code that only a record names isn't imported for it."""
    common = {"kind": "train", "training": "synchronous", "aggregation": "ring", "ranks": 2}
    records = [Record.of({**common, **fields, "settings": json.dumps(fields)}) for _, fields in cases]
    report = settings(problems(records))
    assert [report.name(record) for record in records] == [name for name, _ in cases]
    assert report.where(records[-1]).endswith("2 ranks)")


def test_a_method_is_named_after_the_rate_that_its_grid_found():
    own = {"learning_rate": 0.08, "tuned": "learning_rate=0.04", "tuning_trials": "0.04: 0.8, 0.08: 0.1"}
    like = {"learning_rate": 0.01, "tuned": "learning_rate=0.08", "tuning_trials": "0.04: 0.8, 0.08: 0.9"}
    records = [Record(training="synchronous", aggregation="ring", ranks=8, **fields) for fields in (own, like)]
    assert [*map(Names(records), records)] == ["rate 0.04", "rate 0.08"]
