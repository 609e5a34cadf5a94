"""Networks of real clusters: shipped as files, found by name, and made again from the table of measured times."""

import sys
from pathlib import Path

import pytest
from prediction.test_fitting import cell, timed

from hpcdl.fabric.network import MACHINES, NETWORKS, Link, Network
from hpcdl.fabric.topologies.fat_tree import FatTree
from hpcdl.prediction.fitting import fit
from hpcdl.prediction.network_file import costs_of, load_network

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
        assert estimate.certainty.undetermined == []


def test_a_fit_to_the_table_gives_the_shipped_file(machines):
    """The fewest nodes only: no number of nodes that is held out has moved it."""
    shipped = load_network(MACHINES / "lumi.toml")
    found = machines.estimate("lumi")
    assert costs_of(found.network) == pytest.approx(costs_of(shipped.network), rel=1e-4)
    assert found.network.link.eager_bytes == shipped.network.link.eager_bytes
    assert (found.origin, found.certainty.notes) == (shipped.origin, shipped.certainty.notes)


@pytest.mark.parametrize("topology", [None, FatTree(hosts=[8])])
def test_early_bytes_cost_more_up_to_their_number_and_are_fitted(topology):
    """A ring's messages take alpha + bytes * beta + min(bytes, early bytes) * their cost."""
    link = Link(2e-6, 1e-9, 4e-9, 1000)
    network = Network("early", link, "round numbers", gamma=3e-10, topology=topology)
    for size in (64, 8000, 800_000):
        chunk = size / 8
        stated = 14 * (2e-6 + chunk * 1e-9 + min(chunk, 1000) * 4e-9) + 7 * chunk * 3e-10
        assert cell("ring", 8, size).predicted(network) == pytest.approx(stated, rel=1e-9)
    if topology is None:
        found = fit(
            timed(network, ("ring", "butterfly", "binomial"), (2, 4, 8), (64, 8000, 800_000)), range(8), 1000
        )
        assert vars(found.network.link) == pytest.approx(vars(link), rel=1e-6)
