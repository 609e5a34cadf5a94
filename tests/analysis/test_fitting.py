"""A fit recovers the network that made the times, and tells when no network made them."""

from dataclasses import replace

import numpy as np
import pytest

from hpcdl import registry
from hpcdl.analysis.cells import Cell, cheapest, of_a_library, program_of
from hpcdl.analysis.dual import Dual
from hpcdl.analysis.fitting import ENOUGH, EVERY_RANK, CannotFitError, fit, seconds, summary
from hpcdl.fabric.network import NETWORKS, Link, Network

SCHEMES = ("ring", "tree", "butterfly", "hierarchical")
OURS = [name for name in registry.names("aggregation") if name not in {"auto", "none"} and not of_a_library(name)]
SIZES = (4, 65536, 4194304)
SLOW_ADDER = Network("slow adder", Link(2e-5, 1e-9), source="none", gamma=3e-9, inside=Link(1e-6, 4e-10))


def cell(scheme, ranks, size, took=1.0):
    record = {"kind": "collective", "collective": "allreduce", "dtype": "float32", "aggregation": scheme}
    return Cell(scheme, ranks, size, took, program_of({**record, "message_bytes": size}, ranks))


def timed(network, schemes=SCHEMES, ranks=(2, 3, 4, 6), sizes=SIZES, noise=0.0):
    random = np.random.default_rng(1)
    grid = [cell(scheme, p, size) for scheme in schemes for p in ranks for size in sizes]
    return [replace(one, seconds=seconds(one, network) * np.exp(noise * random.normal())) for one in grid]


def prices(network):
    return [network.link.alpha, network.link.beta, network.gamma, network.inside.alpha, network.inside.beta]


@pytest.mark.parametrize(
    "network", [NETWORKS["ethernet-10g"], NETWORKS["gemini"], SLOW_ADDER], ids=lambda n: n.name
)
def test_one_rank_a_host(network):
    found = fit(timed(network), range(6))
    assert found.pays == ["alpha", "beta", "gamma"]
    assert found.undetermined == []
    assert prices(found.network)[:3] == pytest.approx(prices(network)[:3], rel=1e-3)
    assert summary(found.errors)["worst"] < 1e-3


def test_inside_and_between_hosts():
    hosts = (0, 1, 0, 1, 2, 2)  # filled in turn, as some launchers do
    network = replace(SLOW_ADDER, hosts=hosts)
    assert prices(fit(timed(network), hosts).network) == pytest.approx(prices(network), rel=0.01)


def test_within_one_host():
    network = replace(SLOW_ADDER, ranks_per_host=EVERY_RANK)
    found = fit(timed(network), [7] * 6)
    assert found.network.is_one_host
    assert found.pays == ["gamma", "inside alpha", "inside beta"]
    assert prices(found.network)[2:] == pytest.approx(prices(network)[2:], rel=0.01)


@pytest.mark.parametrize("hosts", [[0] * 6, range(6), [0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 2, 2]], ids=str)
def test_a_time_is_its_derivatives_times_the_prices(hosts):
    """A sum of prices is homogeneous (Euler): nothing that a simulation charges escapes the derivatives."""
    layout = replace(SLOW_ADDER, hosts=tuple(hosts))
    variables = np.eye(5).tolist()
    alpha, beta, gamma, *inside = (Dual(*one) for one in zip(prices(layout), map(tuple, variables), strict=True))
    charged = replace(layout, link=Link(alpha, beta), gamma=gamma, inside=Link(*inside))
    for scheme in OURS:
        for one in (cell(scheme, p, size) for p in (2, 5, 6) for size in (4, 65536)):
            time = seconds(one, charged)
            assert float(time) == seconds(one, layout)
            assert np.dot(time.slope, prices(layout)) == pytest.approx(float(time), rel=1e-9), scheme


def test_twice_and_half_the_time_are_equally_wrong():
    """Times that scatter widely around a network's: by their share of the measured time all would seem too short."""
    found = fit(timed(SLOW_ADDER, noise=0.6, ranks=(2, 3, 4, 5, 6)), range(6))
    assert np.median(found.predicted / found.measured) == pytest.approx(1, abs=0.1)
    sent_and_reduced = np.array([2, 1]) @ prices(found.network)[1:3] / (np.array([2, 1]) @ prices(SLOW_ADDER)[1:3])
    assert sent_and_reduced == pytest.approx(1, abs=0.2)


def test_what_is_dear_to_simulate_is_predicted_by_the_others():
    times = timed(SLOW_ADDER)
    dear = [replace(one, messages=ENOUGH + 1 if one.ranks == 6 else 10) for one in times]
    assert [one.ranks for one in cheapest(dear, ENOUGH)] == [one.ranks for one in dear if one.ranks < 6]
    found = fit(dear, range(6))
    assert len(found.predicted) == len(times)
    assert prices(found.network)[:3] == pytest.approx(prices(SLOW_ADDER)[:3], rel=1e-3)
    assert summary(found.errors)["worst"] < 1e-3


def test_each_number_of_ranks_gives_its_cheapest():
    cells = [
        replace(cell("ring", p, 4), messages=m) for p, m in ((2, 1), (2, 3), (2, 2), (8, 90), (8, 50), (8, 70))
    ]
    assert [(one.ranks, one.messages) for one in cheapest(cells, 54)] == [(2, 1), (2, 2), (8, 50)]
    assert cheapest(cells, 1000) == cells
    assert cheapest(cells, 0) == []


def test_noise_goes_into_the_errors_and_not_into_the_prices():
    found = fit(timed(SLOW_ADDER, noise=0.02), range(6))
    assert prices(found.network)[:3] == pytest.approx(prices(SLOW_ADDER)[:3], rel=0.06)  # thrice the noise
    left_out = summary(found.left_out(lambda one: (one.scheme, one.ranks)))
    assert 0.005 < left_out["median"] < 0.04


def test_one_wild_time_does_not_move_the_fit():
    times = timed(SLOW_ADDER)
    times[5] = replace(times[5], seconds=20 * times[5].seconds)
    found = fit(times, range(6))
    assert prices(found.network)[:3] == pytest.approx(prices(SLOW_ADDER)[:3], rel=0.01)
    assert found.errors[5] == pytest.approx(1 / 20 - 1, abs=0.01)


def test_leaving_out_shows_what_fits_and_does_not_predict():
    """A machine on which ranks disturb each other: at each further p all takes longer than any network says."""
    honest = timed(SLOW_ADDER)
    disturbed = [replace(one, seconds=one.seconds * one.ranks**1.5) for one in honest]
    by_ranks = [summary(fit(times, range(6)).left_out(lambda one: one.ranks)) for times in (honest, disturbed)]
    assert by_ranks[0]["worst"] < 0.01
    assert by_ranks[1]["median"] > 0.3


def test_what_one_scheme_cannot_tell_apart():
    """A ring's bytes are sent and reduced in one proportion, whatever p and n."""
    found = fit(timed(SLOW_ADDER, schemes=["ring"]), range(6))
    assert found.undetermined == ["beta", "gamma"]
    together = 2 * SLOW_ADDER.link.beta + SLOW_ADDER.gamma
    assert 2 * found.network.link.beta + found.network.gamma == pytest.approx(together, rel=1e-3)
    assert summary(found.errors)["worst"] < 1e-3


def test_what_nobody_else_pays_is_not_predicted():
    """Exchanges reduce nothing: without the ring nothing is known of gamma."""
    exchange = {"kind": "pairwise", "collective": "exchange", "aggregation": "fabric"}
    pairs = [Cell("fabric", 2, n, 1.0, program_of({**exchange, "message_bytes": n}, 2)) for n in SIZES]
    times = [replace(one, seconds=seconds(one, SLOW_ADDER)) for one in [*pairs, cell("ring", 2, 65536)]]
    errors = fit(times, range(2)).left_out(lambda one: one.scheme)
    assert np.isnan(errors[-1])


@pytest.mark.parametrize("count", [0, 2])
def test_too_few_times(count):
    with pytest.raises(CannotFitError, match=f"{count} measured collectives and exchanges cannot tell"):
        fit(timed(SLOW_ADDER, ["ring"], [2])[:count], range(2))
