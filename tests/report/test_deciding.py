"""The section on the time to the target: cells, methods over all cells, and searches."""

from dataclasses import replace

from conftest import Hand

from hpcdl.report.formats.verdicts import SENTENCES, words
from hpcdl.report.run.findings import Findings
from hpcdl.report.sections import deciding


def evaluations(seconds):
    """Two evaluations, the last above the target, or below it if ``seconds`` is negative."""
    last = 0.95 if seconds > 0 else 0.5
    return [(19, 1.9, 0.995 * abs(seconds), 1.0, 0.4, 1), (20, 2.0, abs(seconds), 0.5, last, 1)]


def findings(
    hand,
    networks=("slow", "quick"),
    bases=(4.0, 2.0),
    seeds=(1, 2, 3),
    batches=(64, 64),
    methods=("synchronous", "d_psgd"),
):
    for network, factor in zip(networks, (1, 3), strict=False):
        times = (bases[0], *(base * factor for base in bases[1:]))
        for training, base, batch in zip(methods, times, batches, strict=True):
            for seed in seeds:
                hand.train(
                    [[10.0] * 20] * 2, training=training, network=network, seed=seed, target_accuracy=0.9, tuning=8, global_batch=batch,
                    learning_rate=0.01 * factor, tuned="learning_rate=0.05", tuning_images=4000, settings={"network": network}, evaluations=evaluations(base + 0.01 * seed),
                )  # fmt: skip
    return Findings(hand.read(suite_text='[suite]\nanswer = "deciding"'), "run")


def test_each_cell_has_its_first_and_the_methods_are_ranked_over_all(hand):
    """The cells are told apart by what their networks are called, lists included."""
    slow, quick = networks = ("tree(hosts=[1, 4],hop_seconds=1)", "tree(hosts=[2, 4],hop_seconds=1)")
    found = findings(hand, networks)
    cells, tuned = deciding.page(found).tables
    (over_all,) = deciding.profiles_page(found).tables
    assert [(row[0], row[1], row[-1]) for row in cells.rows] == [
        (slow, "d_psgd", "decided"),
        (quick, "synchronous", "decided"),
    ]
    assert [row[:3:2] for row in over_all.rows] == [("d_psgd", "1"), ("synchronous", "1")]
    assert {row[3] for row in tuned.rows} == {"learning_rate=0.05"}
    headline, verdicts = deciding.answer(found)
    assert headline.startswith("First to the target in 2 cells (2 decided): d_psgd in 1, synchronous in 1; the ")
    assert headline.endswith("times as long (simulated, 3 seeds).")
    assert [line.partition(" reaches")[0] for line in verdicts] == [f"{slow}: d_psgd", f"{quick}: synchronous"]
    line = "Times to the target by that of the first method, in 2 cells: d_psgd 1.00 to "
    assert deciding.profiles_answer(found).headline.startswith(line)
    assert [chart.title for chart in deciding.profile_charts(found)] == ["Performance profiles"]


def test_of_several_batches_of_a_method_the_best_one_has_its_profile(hand):
    methods = ("synchronous", "synchronous", "d_psgd")
    found = findings(hand, ("slow", "quick"), (4.0, 2.0, 1.0), batches=(64, 128, 64), methods=methods)
    (best, other), left_out = deciding.profiles(found)
    assert (best.method, best.ratios[0], left_out) == ("d_psgd", 1.0, [])
    assert other.ratios[0] < 2.1


def test_a_first_that_missed_the_target_too_has_no_time(hand):
    times = {"synchronous": (4.0, -4.1, -4.2), "d_psgd": (-6.0, -6.1, -6.2)}
    for training, seeds in times.items():
        for seed, time in enumerate(seeds):
            fields = {"training": training, "seed": seed, "network": "slow", "settings": {"network": "slow"}}
            hand.train([[10.0] * 20] * 2, target_accuracy=0.9, evaluations=evaluations(time), **fields)
    found = Findings(hand.read(suite_text='[suite]\nanswer = "deciding"'), "run")
    headline, _ = deciding.answer(found)
    ((row,), *_) = (table.rows for table in deciding.page(found).tables)
    assert row[1] == "synchronous" and row[-1] == "undecided" and "4.00 s" not in row
    assert not found.decisions[0].is_won
    assert "synchronous reaches the target with 1 of 3 seeds; undecided: d_psgd (in 6.20 s) missed it" in headline


def test_each_sentence_appears_and_missed_seeds_are_rows(tmp_path):
    """Cells by the times of two methods; a negative time misses the target."""
    cells = {
        "decided": {},
        "tied": {"bases": (4.0, 4.01)},
        "alone": {"bases": (4.0, -6.0), "batches": (64, 128)},
        "undecided": {"bases": (4.0, -3.0)},
        "not reached": {"bases": (-4.0, -6.0)},
        "not decided": {"seeds": (1, 2)},
        "first in cells": {"networks": ("slow", "quick")},
        "no first": {"networks": ("slow", "quick"), "seeds": (1, 2)},
    }
    shown, lines, first_cells = {}, {}, {}
    for number, (word, cell) in enumerate(cells.items()):
        (tmp_path / str(number)).mkdir()
        found = findings(Hand(tmp_path / str(number)), **{"networks": ("slow",), **cell})
        headline, _ = deciding.answer(found)
        says = next(row.says for row in SENTENCES if (row.topic, row.word) == ("deciding", word))
        assert says.rpartition("}")[0].rpartition("}")[2].partition("{")[0] in headline, (word, headline)
        page = deciding.page(found)
        first_cells[word] = page.tables[0].rows[0]
        shown[word] = [table.rows for table in page.tables if table.title.startswith("Missed")]
        assert page.title == "Time to the target"
        asked = Findings(replace(found.run, suite='[suite]\nanswer = "profiles"'), "run")
        lines[word] = deciding.profiles_answer(asked).headline
    assert lines["alone"].endswith(
        "in 1 cell: synchronous 1.00; d_psgd misses the target with a seed (simulated, 3 seeds)."
    )
    assert any(cell.startswith("at least ") for cell in first_cells["alone"])
    assert words("profiles") == {"ranges", "open"} and "can't be compared" in lines["not decided"]
    assert set(shown) == words("deciding")
    ((row,),) = shown["alone"]
    assert row[1:] == ("d_psgd, batch 128", "0", "3", "yes, as later than 5.99 s")
    assert [rows[0][-1] for rows in shown["not decided"]] == ["no: fewer than 3 usable seeds"]
