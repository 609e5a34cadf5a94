import csv
import io
import itertools
import json
import re

import pytest
from conftest import Hand

from hpcdl.report.render import render

ENVIRONMENT = {
    "key": "abc123",
    "command": ["/opt/site-packages/hpcdl/__main__.py", "run", "suites/my suite.toml", "-n", "4"],
    "mpi": {"library": "MPICH", "version": "5.0.2\nsecond line", "nodes": 2},
    "cpu": {"model": "Fast CPU", "physical_cores": 8, "smt": "off", "governor": "performance"},
    "libraries": {"ucx": ["/x/libucp.so.0"], "verbs": []},
    "infiniband": {"mlx5_0/1": {"state": "4: ACTIVE", "driver": "mlx5_core", "rate": "200 Gb/sec"}},
    "git": {"commit": "0123456789abcdef", "changed_files": 2},
    "ranks": [{"hostname": "h", "slurm_node": f"n{rank // 2}", "affinity": f"{rank % 2}"} for rank in range(4)],
    "counters": {"tcp": {"RetransSegs": 3, "InSegs": 5}, "infiniband": "unknown"},
    "counters_after": {"tcp": {"RetransSegs": 7, "InSegs": 500}, "infiniband": "unknown"},
}


def steps(ms):
    return [500.0] * 2 + [ms * (1 + 0.001 * (n % 5 - 2)) for n in range(30)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return everything(Hand(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def page(run):
    return render([run], "md")


def everything(hand):
    for seed in (1, 2):
        for name, times in {"ring": (80, 41, 21), "tree": (80, 43, 30), "none": (79, 40, 20)}.items():
            for ranks, ms in zip((1, 2, 4), times, strict=True):
                seen = [(32, 4.0, 32 * ms / 1000, 0.3, 0.80 + 0.09 * seed, 2048)]
                fields = {"aggregation": name, "nodes": (ranks + 1) // 2, "compute": [79 / ranks] * ranks}
                fields |= {"case": f"train-{name}", "seed": seed, "target_accuracy": 0.9, "evaluations": seen}
                hand.train([steps(ms)] * ranks, **fields)
    allreduce = {"kind": "collective", "collective": "allreduce", "dtype": "float32", "message_bytes": 1 << 20}
    allreduce |= {"nodes": 2, "warmup_steps": 2}
    for name, ms in (("ring", 2.0), ("native", 1.0)):
        fields = {"case": f"collective-{name}", "aggregation": name, "correct": name == "native"}
        hand.case([steps(ms)] * 4, **allreduce, **fields)
    for name, ms in (("raw", 0.010), ("fabric", 0.012)):
        hand.case([steps(ms)] * 2, kind="pairwise", aggregation=name, message_bytes=64, warmup_steps=2)
    return hand.read(ENVIRONMENT, "[suite]\nname = 's'\n")


def test_markdown_says_what_was_found(hand, row):
    hand.launches = 2
    page = render([everything(hand)], "markdown")
    assert page.count("strong scaling, global batch 64") == 1
    assert "weak" not in page
    assert "Base 1 rank, step 80.0 ms." in page
    names = ("step", "step 95 %", "efficiency", "efficiency 95 %", "exposed", "near-linear")
    one, ring, tree = (
        [row(page, name, ranks)[column] for column in names]
        for name, ranks in (("1 rank (any scheme)", "1"), ("ring", "4"), ("tree", "4"))
    )
    assert one == ["80.0 ms", "79.0 to 80.0 ms", "1.00", "base", "0 s", "-"]
    assert [ring[0], ring[2], *ring[4:]] == ["21.0 ms", "0.952", "1.00 ms", "yes"]
    assert (tree[2], tree[-1]) == ("0.667", "no")
    assert row(page, "none (no communication)", "4")["near-linear"] == "-"
    assert row(page, "tree", "2")["near-linear"] == "yes"
    assert "On 4 ranks 1 of 2 methods are near-linear for LeNet-5: a ring." in page


def test_markdown_says_what_failed_and_what_to_doubt(page):
    assert page.index("FAILED case") < page.index("## Job")
    assert "FAILED: 1 case of 22." in page
    assert "FAILED case collective-ring (4 ranks): wrong result" in page
    assert "InfiniBand is up, but no verbs library was loaded" in page
    assert "hpcdl has 2 changed files beyond commit 0123456789ab, so that the commit alone does not repeat" in page
    assert "RetransSegs on 1 of 1 host read, most on unknown tcp (4)" in page
    assert "InSegs" not in page
    assert "do not measure scaling" not in page


def test_markdown_job_and_method(page, row):
    assert row(page, "MPI")[1] == "MPICH 5.0.2"
    assert row(page, "pinning")[1] == "0: 0; 1: 1; 2: 0; 3: 1"
    assert row(page, "GPU")[1] == "unknown"
    assert "Command: `hpcdl run 'suites/my suite.toml' -n 4`" in page
    assert "Cases of kind train: 2 warm-up steps left out, then 30 measured steps per case." in page
    assert "all aggregations run the same program there" in page
    assert "```toml\n[suite]\nname = 's'\n```" in page
    for line, following in itertools.pairwise(page.splitlines()):  # tables are aligned
        assert len(line) == len(following) or not (line[:1] == following[:1] == "|")


def test_markdown_accuracy_over_seeds(page, row):
    accuracy = page[page.index("## Accuracy") : page.index("## Collectives")]
    cells = row(accuracy, "ring", "4")
    assert cells["final accuracy"] == "93.5 % (89.0 to 98.0 %)"
    assert "best accuracy 93.5 % (89.0 to 98.0 %)" in accuracy.partition("rows: ")[2]
    assert cells["target reached"] == "1 of 2"
    assert row(accuracy, "1 rank (any scheme)")["target reached"] == "3 of 6"
    assert "none" not in accuracy


def test_time_to_target_is_in_the_row_or_not_reached(hand, row):
    """Twice as many images a second, but not half the time to the accuracy."""
    for ranks, times in {1: (8.0, 8.0), 2: (5.0, 5.0), 4: (2.0, None)}.items():
        for seed, time in enumerate(times, 1):
            at_end = [(32, 4.0, time or 1.0, 0.3, 0.95 if time else 0.5, 2048)]
            whole = {"scaling": "weak", "batch_per_rank": 16, "global_batch": 16 * ranks, "target_accuracy": 0.9}
            hand.train([[80.0] * 22] * ranks, ranks=ranks, seed=seed, evaluations=at_end, **whole)
    page = render([hand.read()], "markdown")
    assert row(page, "ring", "2")[-2] == "5.00 s"
    assert row(page, "ring", "4")[-2] == "not reached"
    assert "best accuracy" in page  # of interest where a target is missed


def test_exposed_communication_is_never_negative(hand, row, whole):
    """The tree takes 30 ms less than training without communication: no time is less than 0."""
    hand.launches = 2
    wide = [40.0, 40.0, *(40.0 + step for step in range(20))]
    hand.train([wide] * 2, aggregation="none")
    hand.train([[ms - 0.1 for ms in wide]] * 2, aggregation="ring")
    hand.train([[ms - 30 for ms in wide]] * 2, aggregation="tree")
    page = whole(hand.read())
    assert row(page, "ring", ranks="2")["exposed"] == row(page, "tree", ranks="2")["exposed"] == "~0"
    assert "~0: the step takes no longer than without communication" in page
    cases = json.loads(render([hand.read()], "json"))["cases"]
    names = [f"exposed_communication_seconds{bound}" for bound in ("", "_low", "_high")]
    assert min(case[name] for case in cases for name in names) == 0


def test_the_share_of_the_step_that_waits_for_images(hand, row, whole):
    hand.train([steps(80)], compute=[70], waiting=[2])
    hand.train([steps(40)] * 2, compute=[30, 30], waiting=[10, 20])
    page = whole(hand.read())
    assert [row(page, "ring", ranks)["input"] for ranks in ("1", "2")] == ["2.5 %", "50.0 %"]
    assert "Input: share of the step that the rank with the longest wait for images waits for them." in page


def test_problems_of_one_model_are_named_by_what_differs(hand, row):
    hand.launches = 2
    for batch in (64, 128):
        for ranks in (1, 2):
            hand.train([steps(80 / ranks)] * ranks, global_batch=batch, settings={"trace": "steps"})
    run = hand.read(suite_text="[suite]\nname = 's'\nquestion = 'How big?'\n")
    page = render([run], "md")
    assert page.count("lenet5 on digits") == 1
    assert page.count("trace=steps") == 1
    assert "\n\nHow big?\n\n## Verdict\n" in page
    assert "### global batch 128\n" in page
    assert "LeNet-5 (global batch 64) stays near-linear on 2 ranks with a ring: efficiency 1.00" in page


def test_inconclusive_is_neither_yes_nor_no(hand, row):
    for launch, ms in enumerate((43.0, 44.0, 45.0)):  # around an efficiency of 0.90
        hand.train([steps(80)], launch=launch)
        hand.train([steps(ms)] * 2, launch=launch)
    page = render([hand.read()], "md")
    assert "0.90, is inside the interval of the efficiency, 0.909 (0.859 to 0.962)." in page
    cells = row(page, "ring", "2")
    assert (cells["efficiency"], cells["efficiency 95 %"]) == ("0.909", "0.859 to 0.962")
    assert cells["near-linear"] == "not decided: 0.90 is inside the interval"


def test_the_answer_and_its_table_are_on_the_first_screen_of_a_terminal(run):
    """Question, headline, badges, sentences and the table that answers; then warnings, and no other section."""
    lines = render([run], "summary").splitlines()
    assert max(map(len, lines)) <= 80
    headings = {line: number for number, line in enumerate(lines) if line.isupper()}
    verdict, (table, start), warnings = headings, list(headings.items())[1], "WARNINGS"
    assert [*verdict] == ["VERDICT", table, warnings]
    assert start < 16
    assert len(lines) < 40
    assert "1 launch | 2 seeds" in lines[headings["VERDICT"] + 2 : headings["VERDICT"] + 4]
    assert any(line.startswith("- FAILED case collective-ring") for line in lines)


def test_a_summary_has_the_best_rows_and_says_where_the_others_are(hand):
    schemes = ["ring", "tree", "native", "binomial", "butterfly", "bruck", "chain"]
    for slower, scheme in enumerate(schemes):
        for ranks in (1, 2, 4):
            hand.train([steps(80 / ranks + slower)] * ranks, aggregation=scheme)
    page = render([hand.read(suite_text="[suite]\nanswer = 'scaling'\n")], "summary")
    rows = [line.split() for line in page[page.index("SCALING\n") :].split("\n\n")[0].splitlines()]
    assert [row[0] for row in rows if row[1:2] == ["4"]] == schemes
    assert "8 of 15 rows, most ranks first, then most images/s; all are in report.html." in " ".join(page.split())


def test_weak_scaling_without_one_rank(hand):
    weak = {"scaling": "weak", "batch_per_rank": 16, "global_batch": None}
    hand.train([steps(20)] * 2, **weak)
    hand.train([steps(21)] * 4, **weak)
    page = render([hand.read(complete=False)], "md")
    assert "weak scaling, 16 images per rank" in page
    assert "Base 2 ranks, step 20.0 ms; efficiency is relative to this base, not to one rank." in page
    assert "The environment was not recorded" in page
    assert "The run is not complete" in page
    assert "INCOMPLETE:" in page


def test_one_scale_says_nothing_of_scaling_and_job_and_method_come_last(hand, row):
    hand.train([steps(20)] * 2, aggregation="ring")
    hand.train([steps(30)] * 2, aggregation="tree")
    page = render([hand.read()], "md")
    assert "efficiency" not in page[page.index("## Scaling") :].split("\n## ")[0]
    assert "near-linear at" not in page
    assert row(page, "tree", ranks="2")["step"] == "30.0 ms"
    titles = re.findall("^## (.*)", page, re.MULTILINE)
    assert (titles[0], *titles[-3:]) == ("Verdict", "Settings", "Job", "Method and how to reproduce")


def test_a_run_without_measured_steps_is_complete(hand):
    """A run whose cases have only warm-up steps; an efficiency that was not measured is not 0."""
    hand.train([[20.0] * 2])
    hand.train([[20.0] * 2] * 4)
    page = render([hand.read()], "md")
    assert "fficiency is" not in page
    assert "INCOMPLETE" not in page
    assert "Nothing failed." in page


def test_text_that_a_spreadsheet_would_compute_is_kept_as_text(hand):
    for number, name in enumerate(("=1+1", "+1", "-1", "@SUM(A1)", "plain")):
        hand.train([[10.0] * 10], case=name, seed=number, learning_rate=-0.5)
    rows = list(csv.DictReader(io.StringIO(render([hand.read()], "csv"))))
    assert [row["case"] for row in rows] == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "plain"]
    assert {row["learning_rate"] for row in rows} == {"-0.5"}


def test_an_unknown_format_is_named_with_the_nearest(run):
    with pytest.raises(ValueError, match="'markdwon'; did you mean 'markdown'"):
        render([run], "markdwon")
