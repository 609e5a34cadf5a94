"""A fit recovers the network of simulated times, and its errors show other times."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from contract.aggregations import SCHEMES, UNCOSTED
from contract.records import with_settings

from hpcdl.analysis.run.record import Record
from hpcdl.fabric.network import NETWORKS, Link, Network, Site
from hpcdl.prediction.fitting import (
    EVERY_RANK,
    MAX_MESSAGES,
    CannotFitError,
    Dual,
    fit,
    fitted,
    summary,
    uncertainty,
)
from hpcdl.prediction.network_file import PricedNetwork, bounds, format_network, load_network
from hpcdl.prediction.programs import MeasuredProgram, cheapest, program_of

FITTED = ("ring", "tree", "butterfly", "hierarchical")
OURS = [name for name in SCHEMES if name not in UNCOSTED]
SIZES = (4, 65536, 4194304)
SLOW_ADDER = Network("slow adder", Link(2e-5, 1e-9), source="none", gamma=3e-9, inside=Link(1e-6, 4e-10))


def cell(scheme, ranks, size):
    fields = {"kind": "collective", "collective": "allreduce", "dtype": "float32", "aggregation": scheme}
    record = Record.of(with_settings({**fields, "ranks": ranks, "message_bytes": size, "time_p50_seconds": 1.0}))
    return MeasuredProgram(record, program_of(record, ranks))


def taking(measured, **numbers):
    """Return a measured program with other numbers in its record."""
    return replace(measured, record=replace(measured.record, **numbers))


def timed(network, schemes=FITTED, ranks=(2, 3, 4, 6), sizes=SIZES, noise=0.0):
    random = np.random.default_rng(1)
    grid = [cell(scheme, p, size) for scheme in schemes for p in ranks for size in sizes]
    return [
        taking(each, time_p50_seconds=each.predicted(network) * np.exp(noise * random.normal())) for each in grid
    ]


def costs(network):
    return [network.link.alpha, network.link.beta, network.gamma, network.inside.alpha, network.inside.beta]


def test_the_overhead_of_messages_under_way_at_once_is_recovered_and_saved(tmp_path):
    network = replace(SLOW_ADDER, site=Site(overhead_seconds=3 / 8 * SLOW_ADDER.link.alpha))
    direct = timed(network, ["direct"], (3, 4, 6))
    environment = {"ranks": [{"hostname": f"host{rank}"} for rank in range(6)]}
    found = fitted(SimpleNamespace(path=Path("run"), environment=environment), [*timed(network), *direct])
    assert found.network.site.overhead_seconds == pytest.approx(network.site.overhead_seconds, rel=1e-3)
    assert found.certainty.error_of("direct", 1e-3) == pytest.approx(0, abs=1e-3)
    (tmp_path / "net.toml").write_text(format_network(found))
    saved = load_network(tmp_path / "net.toml")
    assert saved.network.site == found.network.site
    assert saved.certainty.times == found.certainty.times


def test_one_rank_a_host():
    for network in [NETWORKS["ethernet-10g"], NETWORKS["gemini"], SLOW_ADDER]:
        found = fit(timed(network), range(6))
        assert found.determined == ["alpha", "beta", "gamma"]
        assert found.certainty.undetermined == []
        assert costs(found.network)[:3] == pytest.approx(costs(network)[:3], rel=1e-3)
        assert summary(found.errors)["worst"] < 1e-3


def test_inside_and_between_hosts():
    hosts = (0, 1, 0, 1, 2, 2)  # filled in turn, as some launchers do
    network = replace(SLOW_ADDER, hosts=hosts)
    assert costs(fit(timed(network), hosts).network) == pytest.approx(costs(network), rel=0.01)


def test_within_one_host():
    network = replace(SLOW_ADDER, ranks_per_host=EVERY_RANK)
    found = fit(timed(network), [7] * 6)
    assert found.network.is_one_host
    assert found.determined == ["gamma", "inside alpha", "inside beta"]
    assert costs(found.network)[2:] == pytest.approx(costs(network)[2:], rel=0.01)


def test_a_time_is_its_derivatives_times_the_prices():
    """Times are homogeneous functions of the costs (Euler), so derivatives account for all of them."""
    for hosts in [[0] * 6, range(6), [0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 2, 2]]:
        layout = replace(SLOW_ADDER, hosts=tuple(hosts))
        variables = np.eye(5).tolist()
        alpha, beta, gamma, *inside = (
            Dual(*one) for one in zip(costs(layout), map(tuple, variables), strict=True)
        )
        charged = replace(layout, link=Link(alpha, beta), gamma=gamma, inside=Link(*inside))
        for scheme in OURS:
            for program in (cell(scheme, p, size).program for p in (2, 5, 6) for size in (4, 65536)):
                time = program.simulate(charged).seconds
                assert float(time) == program.simulate(layout).seconds
                assert np.dot(time.slope, costs(layout)) == pytest.approx(float(time), rel=1e-9), scheme


def test_twice_and_half_the_time_are_equally_wrong():
    """Errors relative to measured times would bias the fit of widely scattered times."""
    found = fit(timed(SLOW_ADDER, noise=0.6, ranks=(2, 3, 4, 5, 6)), range(6))
    assert np.median(found.predicted / found.measured) == pytest.approx(1, abs=0.1)
    sent_and_reduced = np.array([2, 1]) @ costs(found.network)[1:3] / (np.array([2, 1]) @ costs(SLOW_ADDER)[1:3])
    assert sent_and_reduced == pytest.approx(1, abs=0.2)


def test_expensive_programs_are_predicted_by_the_others():
    times = timed(SLOW_ADDER)
    dear = [taking(each, messages_per_rank=MAX_MESSAGES if each.ranks == 6 else 1) for each in times]
    assert [each.ranks for each in cheapest(dear, MAX_MESSAGES)] == [each.ranks for each in dear if each.ranks < 6]
    found = fit(dear, range(6))
    assert len(found.predicted) == len(times)
    assert costs(found.network)[:3] == pytest.approx(costs(SLOW_ADDER)[:3], rel=1e-3)
    assert summary(found.errors)["worst"] < 1e-3


def test_one_wild_time_does_not_move_the_fit():
    times = timed(SLOW_ADDER)
    times[5] = taking(times[5], time_p50_seconds=20 * times[5].seconds)
    found = fit(times, range(6))
    assert costs(found.network)[:3] == pytest.approx(costs(SLOW_ADDER)[:3], rel=0.01)
    assert found.errors[5] == pytest.approx(1 / 20 - 1, abs=0.01)


def test_cross_validation_detects_a_fit_that_does_not_predict():
    """A machine on which ranks disturb each other: times grow with p more than in any network."""
    honest = timed(SLOW_ADDER)
    disturbed = [taking(each, time_p50_seconds=each.seconds * each.ranks**1.5) for each in honest]
    by_ranks = [summary(*fit(times, range(6)).left_out(lambda each: each.ranks)) for times in (honest, disturbed)]
    assert by_ranks[0]["worst"] < 0.01
    assert by_ranks[1]["median"] > 0.3


def test_one_scheme_does_not_determine_all_prices():
    """A ring sends and reduces bytes in a fixed proportion, for any p and n."""
    found = fit(timed(SLOW_ADDER, schemes=["ring"]), range(6))
    assert found.certainty.undetermined == ["beta", "gamma"]
    priced = PricedNetwork(found.network, certainty=found.certainty)
    (ring, sure), (butterfly, doubtful) = (
        uncertainty(cell(name, 16, 1 << 20).program, priced, name) for name in ("ring", "butterfly")
    )
    assert ring < 0.01
    assert butterfly > 1
    assert (sure, doubtful) == (False, True)
    together = 2 * SLOW_ADDER.link.beta + SLOW_ADDER.gamma
    assert 2 * found.network.link.beta + found.network.gamma == pytest.approx(together, rel=1e-3)
    assert summary(found.errors)["worst"] < 1e-3


def test_a_latency_that_long_messages_hide_is_undetermined():
    """It is 0.5 % of the shortest message's time, and times vary by 2 %."""
    slow = Network("slow", Link(30e-6, 1e-7), source="none", gamma=1e-8)
    times = timed(slow, schemes=("ring", "tree", "butterfly"), sizes=(1 << 16, 1 << 19, 1 << 22), noise=0.02)
    found = fit(times, range(6))
    priced = PricedNetwork(found.network, certainty=found.certainty)
    assert "alpha" in priced.certainty.undetermined
    assert "beta" not in priced.certainty.undetermined
    undetermined = {
        size: uncertainty(cell("ring", 64, size).program, priced, "ring")[1] for size in (4096, 1 << 26)
    }
    assert undetermined == {4096: True, 1 << 26: False}
    exact = fit(timed(slow, schemes=("ring", "tree", "butterfly")), range(6))
    assert exact.certainty.undetermined == []


@pytest.mark.parametrize("delay", [0, 2e-4])
def test_an_interval_covers_times_that_were_left_out(delay):
    """Errors of 5 %; with delays of 0.2 ms, which are most of a short time, long times have narrow intervals."""
    network, random = Network("t", Link(3e-5, 1e-8), source="none", gamma=1e-9), np.random.default_rng(3)
    measured = [
        taking(
            each,
            time_p50_seconds=each.seconds
            * np.exp(min(np.hypot(0.05, delay / each.seconds), 0.5) * random.normal()),
        )
        for each in timed(network, ranks=(2, 3, 4, 5, 6), sizes=(4096, 1 << 16, 1 << 20, 1 << 23))
    ]
    found = fit(measured, range(6))
    errors, halves = found.left_out(lambda each: (each.scheme, each.ranks))
    assert summary(errors, halves)["covered"] > 0.93
    short, long = (np.median(halves[side]) for side in (found.measured < 0.01, found.measured > 0.05))
    assert 0.08 < long < 0.16, "1.96 * 0.05, and the uncertainty of the costs"
    assert (short > 0.3) == bool(delay)


def test_no_interval_without_the_errors_of_fitted_times():
    """A file of an older version has none: how far the times may be off is unknown."""
    unknown = replace(fit(timed(SLOW_ADDER), range(6)).certainty, times=[])
    priced = PricedNetwork(SLOW_ADDER, certainty=unknown)
    half, _ = uncertainty(cell("ring", 16, 4096).program, priced, "ring")
    assert bounds(1.0, half) == (None, None)


def test_too_few_times():
    for count in [0, 2]:
        with pytest.raises(CannotFitError, match=f"{count} measured collectives and exchanges cannot determine"):
            fit(timed(SLOW_ADDER, ["ring"], [2])[:count], range(2))
