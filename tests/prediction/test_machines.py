"""Networks of real clusters: shipped as files, found by name, and made again from the table of measured times."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from prediction.test_fitting import cell, timed

from hpcdl.analysis.network.clusters import predicted
from hpcdl.fabric.network import MACHINES, NETWORKS, Link, Network
from hpcdl.fabric.topologies.fat_tree import FatTree
from hpcdl.prediction.fitting import linearised, with_costs
from hpcdl.prediction.network_file import NetworkEstimate, costs_of, format_network, load_network

ROOT = Path(__file__).parents[2]
NAMES = ("fugaku", "leonardo", "lumi", "marenostrum5")


@pytest.fixture
def machines(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "reports" / "oracles"))
    yield pytest.importorskip("machines")
    sys.modules.pop("machines")


def test_a_file_of_the_package_is_a_network_by_name():
    assert sorted(path.stem for path in MACHINES.glob("*.toml")) == sorted(NAMES)
    for name in NAMES:
        estimate = load_network(MACHINES / f"{name}.toml")
        assert estimate.network == NETWORKS[name]
        assert estimate.errors["job_left_out"]["of"] > 100


def test_a_fit_to_the_table_gives_the_shipped_files(machines):
    shipped = load_network(MACHINES / "marenostrum5.toml")
    found, times = machines.estimate("marenostrum5")
    assert costs_of(found.network) == pytest.approx(costs_of(shipped.network), rel=1e-4)
    assert (found.origin, found.certainty.notes) == (shipped.origin, shipped.certainty.notes)
    known = {key: row for key, row in predicted().items() if row.machine == "marenostrum5"}
    assert {row[:6] for row in times} == known.keys()
    for row in times:
        assert row[6:] == pytest.approx(known[row[:6]][6:], rel=1e-3, nan_ok=True)


def test_a_held_out_time_does_not_depend_on_its_job(machines):
    """The costs of one job are twice those of the others: their predictions for it do not change."""
    slopes = np.arange(1.0, 13).reshape(6, 2) ** 1.5
    jobs = [("a", 4), ("a", 4), ("b", 4), ("b", 4), ("c", 8), ("c", 8)]
    seconds = slopes @ [2e-6, 1e-9]
    seconds[:2] *= 2
    slopes = np.c_[slopes, [0, 0, 0, 0, 0, 1]]
    times = machines.held_out(slopes, seconds, jobs)
    assert times[:2] == pytest.approx(seconds[:2] / 2, rel=1e-3)
    assert np.isnan(times).tolist() == [False] * 5 + [True]  # no other job has its last cost


DETAILED = Link(2e-6, 1e-9, 5e-7, 1e-7, 2e-11, (4e-9, 2e-9, 0.0, 1e-10, 0.0, 0.0, 3e-10))


@pytest.mark.parametrize("topology", [None, FatTree(hosts=[8])])
def test_bytes_of_each_segment_have_their_cost(topology):
    """A ring's messages take alpha + bytes * beta + the extra costs of their bytes."""
    network = Network("detailed", DETAILED, "round numbers", gamma=3e-10, topology=topology)
    for size, extra in (
        (64, 8 * 4e-9),
        (8000, 512 * 4e-9 + 488 * 2e-9),
        (800_000, 512 * 4e-9 + 3584 * 2e-9 + 67232e-10),
    ):
        chunk = size / 8
        stated = 14 * (2e-6 + chunk * 1e-9 + extra) + 7 * chunk * 3e-10
        assert cell("ring", 8, size).predicted(network) == pytest.approx(stated, rel=1e-9)


def test_a_time_is_the_sum_of_its_derivatives_by_the_costs_of_a_detailed_link():
    """So they determine the costs: programs with many messages at once the overhead."""
    layout = Network("detailed", Link(0.0, 0.0, 0.0), "", grids=((2, 4),))
    costs = np.array([2e-6, 1e-9, 3e-10, 0, 0, 5e-7, 1e-7, 2e-11, *DETAILED.extra])
    programs = timed(
        with_costs(layout, costs.tolist()), ("ring", "direct", "butterfly"), (8,), (64, 8000, 80_000_000)
    )
    found = linearised(programs, layout, costs)
    assert found.predicted == pytest.approx(found.measured, rel=1e-3)
    assert {"overhead", "distance alpha", "extra from 512 B"} <= {*found.determined}


def test_a_file_has_all_costs_of_a_detailed_link_and_none_that_no_link_has(tmp_path):
    network = Network("detailed", DETAILED, "round numbers", grids=((2, 2), (4, 4)))
    path = tmp_path / "n.toml"
    path.write_text(format_network(NetworkEstimate(network)))
    assert load_network(path).network == network
    for line, told in (
        ("extra = [1e-9, 1e-9]", "link.extra: must be costs of bytes from 0, 512, 4096, 32768, 262144, "),
        ("overhead = -1", "link.overhead: must be seconds, from 0 to 1, not -1"),
        ("overhead = 2e-6", "link.overhead: 2e-06 s is more than alpha, of which it is a part"),
        ("eager_beta = 1e-9", "link.eager_beta: no cost of a link; known: alpha, beta, overhead, "),
    ):
        path.write_text(f"[network]\ngamma = 0\n[link]\nalpha = 1e-6\nbeta = 1e-9\n{line}\n")
        with pytest.raises(ValueError, match=re.escape(f"{path}: {told}")):
            load_network(path)
