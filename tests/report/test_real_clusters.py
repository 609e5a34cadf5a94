"""Predictions beside what others measured on real clusters: errors for jobs left out, pairs of jobs, and presets."""

from operator import attrgetter

import pandas as pd
import pytest

from hpcdl.analysis.network.clusters import DAY, PREDICTED, TABLE, comparable, pairs
from hpcdl.report.formats.cells import percent
from hpcdl.report.run.findings import findings
from hpcdl.report.sections.clusters import PRESETS, answer, cells, ratios


@pytest.fixture
def found(hand):
    """A simulated ring on a preset, 20 % faster than one of a job was; and one that nobody measured."""
    common = {"kind": "collective", "collective": "allreduce", "aggregation": "ring", "network": "slingshot-11"}
    wanted = ("lumi", "allreduce", "ring", 32, 4194304)
    keys = attrgetter("machine", "collective", "scheme", "nodes", "message_bytes")
    measured = next(each for each in comparable() if keys(each) == wanted)
    hand.case([[800 * measured.seconds] * 3], case="known", ranks=32, message_bytes=4194304, **common)
    hand.case([[1.0] * 3], case="nobody measured this", ranks=17, message_bytes=4194304, **common)
    (own,) = findings([hand.read(suite_text="[suite]\nname = 's'\nanswer = 'clusters'\n")])
    return own


def test_errors_are_those_of_the_tables(found):
    """The tables are joined, and errors computed, in another way."""
    keys = ["machine", "job", "ranks", "collective", "algorithm", "message_bytes"]
    table = pd.read_csv(TABLE, comment="#", keep_default_na=False).query("memory == 'host' and ranks == nodes")
    joined = table.merge(pd.read_csv(PREDICTED, comment="#"), on=keys)
    errors = (joined["held_out_ns"] / joined["median_ns"] - 1).abs().groupby(joined["machine"])
    headline = answer(found).headline
    for machine, share in errors.median().items():
        assert f"{percent(share)} on {machine}" in headline.lower().replace("marenostrum 5", "marenostrum5")
    assert sum(len(cell.errors) for cell in cells()) == errors.count().sum()


def test_two_jobs_are_a_pair_if_they_have_equal_settings():
    by = pairs()
    for kind, machines in by.items():
        for pair in (pair for some in machines.values() for pair in some):
            first, other = pair.first, pair.other
            assert pair.difference >= 0
            assert "rail 4" not in (first.notes.strip(), other.notes.strip()) or first.job == other.job
            assert (first.scheme, first.message_bytes) == (other.scheme, other.message_bytes)
            assert (kind == "own code and library") == (first.job == other.job)
            assert kind == "any nodes" or first.nodes == other.nodes
            assert kind != "any nodes" or first.job[:DAY] != other.job[:DAY]
    assert {*by["any nodes"]} == {"fugaku", "leonardo", "lumi", "marenostrum5"}


def test_a_preset_is_compared_with_the_machine_that_has_its_ports(found):
    (ratio,) = {round(each.value, 3) for each in ratios(found) if each.measured.nodes == 32}
    assert ratio == 0.8
    assert PRESETS["slingshot-11"] == "lumi"
    assert any("preset" in line and "80.0 %" in line for line in answer(found).details)


def test_only_a_suite_that_asks_shows_them(hand):
    hand.case([[1.0] * 3], kind="collective", network="slingshot-11", ranks=32, message_bytes=4194304)
    assert answer(findings([hand.read(suite_text="[suite]\nname = 's'\n")])[0]) is None
