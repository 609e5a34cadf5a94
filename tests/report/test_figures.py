"""The main figure of a report shows the answer to its suite's question."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.analysis.run.pooling import read_pooled
from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.document import Axis, Point
from hpcdl.report.render import figures
from hpcdl.report.run.declaration import LOWEST, STEP, curves, over_cost
from hpcdl.report.run.grouping import Row, Scale

ROOT = Path(__file__).parents[2]
AXES = Axis("ranks", base=2), Axis("time")
MAIN = {
    "collectives": ("Time over size: allreduce, 4 ranks", {}),
    "near-linear": ("Speedup", {"ideal": 1}),
    "your-network": ("Speedup: Llama 3 8B", {"ideal": 1}),
}
"""Title of each report's figure, and its levels."""


def figures_of(name):
    """Return the figures of a kept report, by title."""
    run = read_pooled([ROOT / f"reports/data/{name}.json.xz"])
    return figures([replace(run, suite=(ROOT / f"suites/{name}.toml").read_text())])


@pytest.mark.parametrize("name", MAIN)
def test_the_main_figure_of_a_report_answers_its_question(name):
    """It also has no line of one point, unless all are points, and no tick where nothing was measured."""
    (title, chart), *_ = figures_of(name).items()
    begin, levels = MAIN[name]
    assert title.startswith(begin)
    known = {line.name: line.points[0].y for line in chart.series if line.role == "reference"}
    assert {level: known.get(level) for level in levels} == pytest.approx(levels, abs=1e-3)
    methods = [line for line in chart.series if line.role == "method"]
    counts = {len(line.points) for line in methods}
    assert 1 not in counts or counts == {1}
    assert set(chart.x.ticks) <= {point.x for line in methods for point in line.points}
    assert len({line.name for line in methods}) == len(methods)


def test_networks_that_are_simulated_stand_beside_one_another(hand):
    """RDMA beside TCP in one chart."""
    for network, factor in (("rdma-100g", 1), ("tcp-100g", 3)):
        for size in (1024, 4096):
            hand.case(
                [[factor * size / 1024] * 9] * 4, kind="collective", collective="allreduce", aggregation="ring",
                dtype="float32", message_bytes=size, network=network, correct=True, case=f"{network} {size}",
                settings={"network": network},
            )  # fmt: skip
    shown = figures([hand.read(suite_text='[suite]\nname = "s"\nanswer = "collectives"\n')])
    (sums,) = (chart for title, chart in shown.items() if title.startswith("Time over size: allreduce, 4 ranks"))
    assert {line.name.partition(", ")[2] for line in sums.series} == {"rdma-100g", "tcp-100g"}


def test_costs_and_published_figures_stand_beside_one_and_memory_is_in_bytes():
    """The bars are the range of each paper's figures without fitted ones; ZeRO-3 needs the least memory."""
    costs = figures_of("costs")["Time with / without the fabric, tracing"]  # not accuracy over time
    assert costs.reference == 1 and {label.partition(":")[0] for label in costs.labels} == {"fabric", "tracing"}
    shown = figures_of("published") | figures_of("memory")
    papers, memory = shown["Simulated / published"], shown["Memory per rank: ResNet-20, adam"]
    assert papers.reference == 1 and sum(int(label.split()[-2]) for label in papers.labels) == 42
    assert all(low <= middle <= high for middle, low, high in papers.values)
    assert memory.labels == ("synchronous", "ZeRO-1", "ZeRO-2", "ZeRO-3")
    assert list(memory.parts["memory"]) == sorted(memory.parts["memory"], reverse=True)


def test_the_efficiency_is_that_of_the_best_method_that_communicates(hand):
    """The baseline without communication is faster, and no method."""
    for scheme, ms in (("none", 40.0), ("ring", 50.0), ("tree", 80.0)):
        for ranks in (1, 2):
            hand.train([[80.0 if ranks == 1 else ms] * 10] * ranks, aggregation=scheme)
    for ranks, ms in ((1, 80.0), (2, 60.0)):
        hand.train([[ms] * 10] * ranks, model="alexnet")
    (chart,) = (chart for title, chart in figures([hand.read()]).items() if title == "Efficiency")
    ends = {line.name: line.points[-1].y for line in chart.series if line.role == "method"}
    assert ends == {"LeNet-5": pytest.approx(0.8, abs=0.01), "AlexNet": pytest.approx(2 / 3, abs=0.01)}


def test_curves_have_two_points_the_most_often_best_first_and_ticks_where_they_were_measured():
    lines = {
        "slow": [Point(4, 9), Point(1, 8)],
        "short": [Point(1, 1), Point(2, 1)],
        "once": [Point(4, 0)],
        "native": [Point(1, 8), Point(4, 20)],
        "fast": [Point(1, 8), Point(4, 2)],
    }
    (chart,) = curves("", AXES, lines, "", best=LOWEST, references={"ideal": lambda ranks: 8 / ranks})
    assert [line.name for line in chart.series] == ["native", "fast", "short", "slow", "ideal"]
    assert [line.role for line in chart.series[-2:]] == ["method", "reference"]
    assert (chart.x.ticks, chart.series[-1].points) == ([1, 2, 4], [Point(1, 8), Point(4, 2)])
    assert [tuple(point[:2]) for point in chart.series[3].points] == [(1, 8), (4, 9)]
    assert curves("", AXES, {"once": [Point(4, 0)]}, "") == []


def test_of_points_those_come_first_that_no_other_beats_in_both():
    def drawn(accuracies):
        """Return the chart of methods by name, each with its step (s) and accuracy."""
        scale = lambda step, accuracy: Scale([Record(step_seconds=step, final_accuracy=accuracy)])
        return over_cost([("lenet5", "", [Row(name, scale(*both)) for name, both in accuracies.items()])], STEP)

    methods = {"slow": (9, 0.8), "both": (2, 0.8), "fast": (1, 0.5), "worse": (3, 0.7), "best": (8, 0.9)}
    (chart,) = drawn(methods)
    assert [line.name for line in chart.series] == ["best", "both", "fast", "slow", "worse"]
    assert drawn({"a": (1, 0.5), "b": (2, 0.6)}) == []
