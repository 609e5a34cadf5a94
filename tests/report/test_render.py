import csv
import io
import itertools
import json

import pytest

from hpcdl.analysis.fields import CONTRACT
from hpcdl.report.card import card
from hpcdl.report.render import render
from hpcdl.report.warnings import grown, usable_cores

ENVIRONMENT = {
    "key": "abc123",
    "command": ["hpcdl", "run", "suites/my suite.toml", "-n", "4"],
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


@pytest.fixture
def run(hand):
    for seed in (1, 2):
        for name, times in {"ring": (80, 41, 21), "tree": (80, 43, 30), "none": (79, 40, 20)}.items():
            for ranks, ms in zip((1, 2, 4), times, strict=True):
                hand.train(
                    [steps(ms)] * ranks,
                    case=f"train-{name}",
                    aggregation=name,
                    nodes=(ranks + 1) // 2,
                    seed=seed,
                    compute=[79 / ranks] * ranks,
                    target_accuracy=0.9,
                    evaluations=[(32, 4.0, 32 * ms / 1000, 0.3, 0.80 + 0.09 * seed, 2048)],
                )
    for name, ms in (("ring", 2.0), ("native", 1.0)):
        hand.case(
            [steps(ms)] * 4,
            case=f"collective-{name}",
            kind="collective",
            collective="allreduce",
            aggregation=name,
            nodes=2,
            message_bytes=1 << 20,
            dtype="float32",
            warmup_steps=2,
            correct=name == "native",
        )
    for name, ms in (("raw", 0.010), ("exchange", 0.012)):
        hand.case([steps(ms)] * 2, kind="pairwise", aggregation=name, message_bytes=64, warmup_steps=2)
    return hand.read(ENVIRONMENT, "[suite]\nname = 's'\n")


def row(page, *starts):
    """Cells of the first table row that begins with these."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[: len(starts)] == list(starts):
            return cells
    raise AssertionError(f"no row {starts} in\n{page}")


def test_markdown_says_what_was_found(run):
    page = render([run], "markdown")
    assert "strong scaling, global batch 64" in page
    assert "weak" not in page
    assert "ring, tree: base p = 1 (its own case), step 80.0 ms." in page
    ring = row(page, "ring", "4")
    assert ring[2:4] == ["2", "21.0 ms"]
    assert ring[6:8] == ["3.81", "0.952"]
    assert ring[9:] == ["1.00 ms", "yes"]
    tree = row(page, "tree", "4")
    assert (tree[7], tree[-1]) == ("0.667", "no")
    assert row(page, "none (no communication)", "4")[-1] == "-"
    assert row(page, "ring", "1")[8] == "base"
    assert "near-linear up to 4 ranks (efficiency 0.952" in page
    assert "near-linear up to 2 ranks, no further (lower bound below 0.90: efficiency 0.667" in page
    assert "1 of 2 schemes near-linear" in page


def test_markdown_says_what_failed_and_what_to_doubt(run):
    page = render([run], "md")
    assert page.index("FAILED: ") < page.index("## Job")
    assert "FAILED case collective-ring (4 ranks): wrong result" in page
    assert "InfiniBand is up, but no verbs library was loaded" in page
    assert "hpcdl has 2 changed files beyond commit 0123456789ab." in page
    assert "tcp RetransSegs grew by 4" in page
    assert "InSegs" not in page
    assert "OVERSUBSCRIBED" not in page


def test_markdown_job_and_method(run):
    page = render([run], "md")
    assert row(page, "MPI")[1] == "MPICH 5.0.2"
    assert row(page, "pinning")[1] == "0: 0; 1: 1; 2: 0; 3: 1"
    assert row(page, "GPU")[1] == "unknown"
    assert "Command: `hpcdl run 'suites/my suite.toml' -n 4`" in page
    assert "train: 2 warm-up steps left out, 30 to 30 steps measured" in page
    assert "```toml\n[suite]\nname = 's'\n```" in page


def test_markdown_accuracy_over_seeds(run):
    page = render([run], "md")
    accuracy = page[page.index("## Accuracy") : page.index("## Efficiency")]
    cells = row(accuracy, "ring", "4")
    assert cells[2:4] == ["2", "0.935 (0.890 to 0.980)"]
    assert cells[5:7] == ["1 of 2", "-"]
    assert "none | 4" not in " ".join(accuracy.split())


def test_markdown_operations(run):
    page = render([run], "md")
    part = page[page.index("## Collectives") :]
    native, ring = row(part, "native", "1 MiB"), row(part, "ring", "1 MiB")
    assert native[6:] == ["1.05 GB/s", "1.57 GB/s", "1.00", "1.00", "yes"]
    assert ring[8:] == ["0.500", "0.500", "NO"]
    assert row(part, "exchange", "64 B")[-1] == "2.00 us"


def test_markdown_winners_and_split(run):
    page = render([run], "md")
    assert row(page, "digits", "fastest: most images per second")[4:6] == ["ring", "4"]
    split = page[page.index("## Efficiency split") :]
    assert row(split, "tree", "4")[4:] == ["1.00", "0.658", "0.658"]


def test_markdown_tables_are_aligned(run):
    lines = render([run], "md").splitlines()
    for line, following in itertools.pairwise(lines):
        if line.startswith("|") and following.startswith("|"):
            assert len(line) == len(following)


def test_weak_scaling_without_one_rank(hand):
    weak = {"scaling": "weak", "batch_per_rank": 16, "global_batch": None}
    hand.train([steps(20)] * 2, **weak)
    hand.train([steps(21)] * 4, **weak)
    page = render([hand.read(complete=False)], "md")
    assert "weak scaling, 16 images per rank" in page
    assert "base p = 2 (its own case), step 20.0 ms; efficiency is relative to that, not to one rank" in page
    assert "the environment was not recorded" in page
    assert "the run is not complete" in page
    assert "INCOMPLETE:" in page


def test_too_little_data_is_undecided(hand):
    hand.train([[20.0] * 4])
    hand.train([[10.0] * 4] * 2)
    page = render([hand.read()], "md")
    assert "undecided: too little data" in page
    assert "2 measured steps are too few" in page
    assert row(page, "ring", "2")[-1] == "-"


def test_an_empty_run_is_not_fine(hand):
    assert "INCOMPLETE:" in render([hand.read()], "md")


def test_oversubscription(hand):
    hand.train([steps(20)] * 4, threads_per_rank=3)
    page = render([hand.read({"cpu": {"physical_cores": 8}})], "md")
    assert "OVERSUBSCRIBED: 8 cores per node; 4 ranks want 12" in page


def test_usable_cores():
    assert usable_cores({}) is None
    assert usable_cores({"cpu": {"physical_cores": 8, "quota_cores": 1.5}}) == 1.5
    assert (
        usable_cores({"cpu": {"physical_cores": "unknown"}, "ranks": [{"hostname": "a", "affinity": "0-3,8"}]})
        == 5
    )
    assert usable_cores(ENVIRONMENT) == 2


def test_counters_that_grew():
    before = {"network": {"eth0": {"rx_errors": 1, "rx_bytes": 5}}, "infiniband": "unknown"}
    after = {"network": {"eth0": {"rx_errors": 4, "rx_bytes": 9}}, "infiniband": {"m/1": {"symbol_error": 2}}}
    assert list(grown(before, after)) == [("network eth0 rx_errors", 3)]


def test_an_unknown_environment_still_has_a_card(hand):
    section = card(hand.read(), ["mind this"])
    assert section.points == ["Warning: mind this"]
    assert ("MPI", "unknown") in section.tables[0].rows


def test_json(run):
    document = json.loads(render([run], "json"))
    assert document["schema"] == 1
    ring = next(c for c in document["cases"] if (c["aggregation"], c["ranks"], c["kind"]) == ("ring", 4, "train"))
    assert ring["efficiency"] == pytest.approx(80 / 84, rel=1e-3)
    assert ring["collective"] is None
    assert set(CONTRACT) <= ring.keys()


def test_csv(run):
    rows = list(csv.DictReader(io.StringIO(render([run, run], "csv"))))
    assert len(rows) == 2 * (18 + 2 + 2)
    assert list(rows[0])[: len(CONTRACT)] == list(CONTRACT)
    ring = next(c for c in rows if (c["aggregation"], c["ranks"], c["kind"]) == ("ring", "4", "train"))
    assert float(ring["step_seconds"]) == pytest.approx(0.021)
    assert ring["time_p50_seconds"] == ""


def test_an_unknown_format_is_named_with_the_nearest(run):
    with pytest.raises(ValueError, match="'markdwon'; did you mean 'markdown'"):
        render([run], "markdwon")
