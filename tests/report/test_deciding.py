"""The section on the time to the target: configurations, methods over all of them, and searches."""

from dataclasses import replace

from conftest import Hand

from hpcdl.report.run.findings import Findings
from hpcdl.report.run.warnings import warnings
from hpcdl.report.sections import deciding


def evaluations(seconds):
    """Two evaluations, the last above the target, or below it if ``seconds`` is negative."""
    last = 0.95 if seconds > 0 else 0.5
    return [(19, 1.9, 0.995 * abs(seconds), 1.0, 0.4, 1), (20, 2.0, abs(seconds), 0.5, last, 1)]


PAIR = ("synchronous", "d_psgd")


def findings(hand, networks=("slow", "quick"), bases=(4.0, 2.0), seeds=(1, 2, 3), batches=(64, 64), methods=PAIR):
    """``bases``: time of each method, about that of its seeds or of each; negative: missed the target."""
    for network, factor in zip(networks, (1, 3), strict=False):
        times = (bases[0], *(base * factor for base in bases[1:]))
        for training, base, batch in zip(methods, times, batches, strict=True):
            for seed in seeds:
                time = base[seed - 1] if isinstance(base, tuple) else base + 0.01 * seed
                hand.train(
                    [[10.0] * 20] * 2, training=training, network=network, seed=seed, target_accuracy=0.9, tuning=8, global_batch=batch,
                    learning_rate=0.01 * factor, tuned="learning_rate=0.05", tuning_images=4000, settings={"network": network}, evaluations=evaluations(time),
                )  # fmt: skip
    return Findings(hand.read(suite_text='[suite]\nanswer = "deciding"'), "run")


def test_each_configuration_has_its_first_and_the_methods_are_ranked_over_all(hand):
    """Configurations are named by what distinguishes them: here their networks, lists included."""
    slow, quick = networks = ("tree(hosts=[1, 4],hop_seconds=1)", "ethernet-10g")
    found = findings(hand, networks)
    (configurations,), (tuned,) = deciding.page(found).tables, deciding.tuning_page(found).tables
    (over_all,) = deciding.profiles_page(found).tables
    assert [(row[0], row[1], row[-1]) for row in configurations.rows] == [
        (slow, "d_psgd", "decided"),
        (quick, "synchronous", "decided"),
    ]
    assert [row[:3:2] for row in over_all.rows] == [("d_psgd", "1"), ("synchronous", "1")]
    assert {row[3] for row in tuned.rows} == {"learning_rate=0.05"}
    headline, verdicts, basis, _ = deciding.answer(found)
    first = f"D-PSGD reaches the target first with {slow} (the next takes 1.99"
    assert headline.startswith(first) and headline.endswith("), synchronous training on 10 Gbit/s Ethernet.")
    assert verdicts[0].startswith(f"D-PSGD reaches the target first, in 2.02 s with {slow}; synchronous tra")
    assert len(basis) == 12
    assert deciding.profiles_answer(found).headline == (
        "D-PSGD takes at most 1.50 times as long as the fastest method in each of 2 configurations; synchronous "
        "training takes up to 1.99 times as long."
    )
    assert [chart.title for chart in deciding.profile_charts(found)] == ["Performance profiles"]


GRID = {"tuning": 3, "tuned": "learning_rate=0.1", "tuning_images": 600, "tuning_trials": "0.1: 0.7, 0.2: 0.6"}


def test_a_grid_shows_the_accuracy_of_each_rate_and_warns_of_an_edge(hand):
    for seed in (1, 2):
        hand.train([[10.0] * 20] * 2, seed=seed, tuning_edge="LOW: add 0.05", **GRID)
    run = hand.read()
    found = Findings(run, "run")
    (table,) = deciding.tuning_page(found).tables
    (row,) = table.rows
    assert row[3:] == ("learning_rate=0.1", "LOW: add 0.05", "0.1: 0.7, 0.2: 0.6", "3", "600")
    (line,) = [line for line in warnings(run, found.records) if "grid" in line]
    assert line.startswith("The best trial of 2 cases is at an edge of its grid.")
    assert line.endswith(" (2 ranks, seed 1), LOW: add 0.05.")


def test_methods_differ_by_the_case_whose_rate_they_take(hand):
    for like in (None, "training=d_psgd; x 0.25"):
        hand.train([[10.0] * 20] * 2, seed=1, tuning_like=like, **GRID)
    found = Findings(hand.read(), "run")
    assert found.records[0].method != found.records[1].method
    (table,) = deciding.tuning_page(found).tables
    assert [row[2] for row in table.rows] == ["ring", "ring, rate of training=d_psgd; x 0.25"]


def test_of_several_batches_of_a_method_the_best_one_has_its_profile(hand):
    methods = ("synchronous", "synchronous", "d_psgd")
    found = findings(hand, ("slow", "quick"), (4.0, 2.0, 1.0), batches=(64, 128, 64), methods=methods)
    (best, other), left_out = deciding.profiles(found)
    assert (best.method, best.ratios[0], left_out) == ("d_psgd", 1.0, [])
    assert other.ratios[0] < 2.1


BASE = "synchronous training"
BOTH = ("ethernet-1g", "ethernet-10g")
CONFIGURATIONS = {
    "decided": ({}, f"D-PSGD reaches the target first, in 2.02 s; {BASE} takes 1.99 ("),
    "tied": ({"bases": (4.0, 4.01)}, f"Not decided which is first: {BASE}, in 4.02 s with 3 seeds, or D-PSGD."),
    "alone": ({"bases": (4.0, -6.0), "batches": (64, 128)}, f"Only {BASE} reaches the target, in 4.02 s with 3"),
    "undecided": ({"bases": (4.0, -3.0)}, f"Not decided: {BASE} reaches the target in 4.02 s with 3 seeds; "),
    "one of three": (
        {"bases": ((4.0, -4.1, -4.2), -6.0)},
        f"Not decided: {BASE} reaches the target with 1 of 3 seeds; with more seeds or training D-PSGD may be first.",
    ),
    "not reached": ({"bases": (-4.0, -6.0)}, "No method reaches the target."),
    "not decided": ({"seeds": (1, 2)}, "Not decided: there are fewer than 3 usable seeds of "),
    "several": ({"networks": BOTH}, "D-PSGD reaches the target first on 1 Gbit/s Ethernet (the next takes 1.99 "),
    "all": ({"networks": BOTH, "bases": (9.0, 1.0)}, "D-PSGD reaches the target first on both networks (the "),
    "none": (
        {"networks": BOTH, "seeds": (1, 2)},
        "Not decided: in each of 2 configurations another method may reach ",
    ),
    "slow": (
        {"bases": (4.0, 4.01, 9.0), "methods": ("synchronous", "d_psgd", "ad_psgd"), "batches": (64, 64, 64)},
        f"Not decided which is first: {BASE}, in 4.02 s with 3 seeds, or D-PSGD; AD-PSGD takes 2.24 ",
    ),
}


def test_each_sentence_appears_and_missed_seeds_are_rows(tmp_path):
    """Configurations by the times of two methods; a negative time misses the target."""
    pages, lines = {}, {}
    for word, (configuration, says) in CONFIGURATIONS.items():
        found = findings(Hand(tmp_path / word), **{"networks": ("slow",), **configuration})
        assert deciding.answer(found).headline.startswith(says), (word, deciding.answer(found).headline)
        pages[word] = {table.title: table.rows for table in deciding.page(found).tables}
        asked = Findings(replace(found.run, suite='[suite]\nanswer = "profiles"'), "run")
        lines[word] = deciding.profiles_answer(asked)
    assert lines["alone"].details == ["With D-PSGD at least one seed missed the target in a configuration."]
    first, missed = pages["one of three"][""][0], "Missed seeds, and methods left out"
    assert first[1] == "synchronous" and first[-1] == "others may be first" and "4.00 s" not in first
    assert any(text.startswith("at least ") for text in pages["alone"][""][0])
    assert lines["not decided"].headline.startswith("Not decided: fewer than two methods have 3 usable seeds")
    (row,) = pages["alone"][missed]
    assert row[1:] == ("d_psgd, batch 128", "0", "3", "yes, counted as later than 5.99 s")
    assert pages["not decided"][missed][0][-1] == "no: fewer than 3 usable seeds"
