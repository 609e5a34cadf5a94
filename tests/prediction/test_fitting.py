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
    with_own_cores,
)
from hpcdl.prediction.network_file import Certainty, NetworkEstimate, bounds, format_network, load_network
from hpcdl.prediction.programs import MeasuredProgram, cheapest, measured_programs, program_of

FITTED = ("ring", "tree", "butterfly", "hierarchical")
SIZES = (4, 65536, 4194304)
RUN = SimpleNamespace(path=Path("run"), environment={"ranks": [{"hostname": f"host{rank}"} for rank in range(6)]})
SLOW_ADDER = Network("slow adder", Link(2e-5, 1e-9), source="none", gamma=3e-9, inside=Link(1e-6, 4e-10))


def cell(scheme, ranks, size):
    fields = {"kind": "collective", "collective": "allreduce", "dtype": "float32", "aggregation": scheme}
    record = Record.of(with_settings({**fields, "ranks": ranks, "message_bytes": size}))
    return MeasuredProgram(record, program_of(record, ranks))


def timed(network, schemes=FITTED, ranks=(2, 3, 4, 6), sizes=SIZES, factor=lambda _: 1.0):
    """Return programs that take their time on ``network``, times the factor of each."""
    programs = [cell(scheme, p, size) for scheme in schemes for p in ranks for size in sizes]
    for each in programs:
        each.record.time_p50_seconds = each.predicted(network)
        each.record.time_p50_seconds *= factor(each)
    return programs


def noise(deviation, seed=1, delay=0.0):
    """Return lognormal factors; those of a time near ``delay`` vary more."""
    random = np.random.default_rng(seed)
    return lambda each: np.exp(min(np.hypot(deviation, delay / each.seconds), 0.6) * random.normal())


def costs(network):
    return [network.link.alpha, network.link.beta, network.gamma, network.inside.alpha, network.inside.beta]


def estimate(found):
    return NetworkEstimate(found.network, certainty=found.certainty)


def test_the_overhead_of_messages_under_way_at_once_is_recovered_and_saved(tmp_path):
    network = replace(SLOW_ADDER, site=Site(overhead_seconds=3 / 8 * SLOW_ADDER.link.alpha))
    programs = [*timed(network), *timed(network, ["direct"])]
    found = fitted(RUN, programs)
    assert found.network.site.overhead_seconds == pytest.approx(network.site.overhead_seconds, rel=1e-3)
    assert found.origin["times"] == len(programs) - 3 * len(SIZES), "two ranks have one message at a time"
    assert found.certainty.error_of("direct", 1e-3) == pytest.approx(0, abs=1e-3)
    (tmp_path / "net.toml").write_text(format_network(found))
    saved = load_network(tmp_path / "net.toml")
    assert saved.network.site == found.network.site
    assert saved.certainty.times == found.certainty.times
    assert saved.certainty.growth == found.certainty.growth != []


def assert_fits(found, network, known=slice(3), within=1e-3):
    assert costs(found.network)[known] == pytest.approx(costs(network)[known], rel=within)
    assert summary(found.errors)["worst"] < within


@pytest.mark.parametrize("network", [NETWORKS["ethernet-10g"], NETWORKS["gemini"], SLOW_ADDER])
def test_one_rank_a_host(network):
    found = fit(timed(network), range(6))
    assert found.determined == ["alpha", "beta", "gamma"]
    assert found.certainty.undetermined == []
    assert_fits(found, network)


def test_inside_and_between_hosts_and_within_one_host():
    hosts = (0, 1, 0, 1, 2, 2)  # filled in turn, as some launchers do
    network = replace(SLOW_ADDER, hosts=hosts)
    assert_fits(fit(timed(network), hosts), network, slice(5), 0.01)
    network = replace(SLOW_ADDER, ranks_per_host=EVERY_RANK)
    found = fit(timed(network), [7] * 6)
    assert found.network.is_one_host
    assert found.determined == ["gamma", "inside alpha", "inside beta"]
    assert_fits(found, network, slice(2, 5), 0.01)


@pytest.mark.parametrize("hosts", [[0] * 6, range(6), [0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 2, 2]])
def test_a_time_is_its_derivatives_times_the_costs(hosts):
    """Times are homogeneous functions of the costs (Euler), so derivatives account for all of them."""
    layout = replace(SLOW_ADDER, hosts=tuple(hosts))
    alpha, beta, gamma, *inside = map(Dual, costs(layout), map(tuple, np.eye(5).tolist()))
    charged = replace(layout, link=Link(alpha, beta), gamma=gamma, inside=Link(*inside))
    for scheme in set(SCHEMES) - set(UNCOSTED):
        for program in (cell(scheme, p, size).program for p in (2, 5, 6) for size in (4, 65536)):
            time = program.simulate(charged).seconds
            assert float(time) == program.simulate(layout).seconds
            assert np.dot(time.slope, costs(layout)) == pytest.approx(float(time), rel=1e-9), scheme


def test_twice_and_half_the_time_are_equally_wrong():
    """Errors relative to measured times would bias the fit of widely scattered times."""
    found = fit(timed(SLOW_ADDER, ranks=(2, 3, 4, 5, 6), factor=noise(0.6)), range(6))
    assert np.median(found.predicted / found.measured) == pytest.approx(1, abs=0.1)
    sent_and_reduced = np.array([2, 1]) @ costs(found.network)[1:3] / (np.array([2, 1]) @ costs(SLOW_ADDER)[1:3])
    assert sent_and_reduced == pytest.approx(1, abs=0.2)


def test_expensive_programs_are_predicted_by_the_others_and_one_wild_time_does_not_move_the_fit():
    programs = timed(SLOW_ADDER)
    for each in programs:
        each.record.messages_per_rank = MAX_MESSAGES if each.ranks == 6 else 1
    assert cheapest(programs, MAX_MESSAGES) == [each for each in programs if each.ranks < 6]
    found = fit(programs, range(6))
    assert len(found.predicted) == len(programs)
    assert_fits(found, SLOW_ADDER)
    programs[5].record.time_p50_seconds *= 20
    found = fit(programs, range(6))
    assert costs(found.network)[:3] == pytest.approx(costs(SLOW_ADDER)[:3], rel=0.01)
    assert found.errors[5] == pytest.approx(1 / 20 - 1, abs=0.01)


def test_cross_validation_detects_a_fit_that_does_not_predict():
    """A machine on which ranks disturb each other: times grow with p more than in any network."""
    machines = timed(SLOW_ADDER), timed(SLOW_ADDER, factor=lambda each: each.ranks**1.5)
    honest, disturbed = (summary(*fit(each, range(6)).left_out(lambda one: one.ranks)) for each in machines)
    assert honest["worst"] < 0.01
    assert disturbed["median"] > 0.3


def test_one_scheme_does_not_determine_all_costs():
    """A ring sends and reduces bytes in a fixed proportion, for any p and n. Two times are too few."""
    times = timed(SLOW_ADDER, schemes=["ring"])
    for few in ([], times[:2]):
        with pytest.raises(
            CannotFitError, match=f"{len(few)} measured collectives and exchanges cannot determine"
        ):
            fit(few, range(6))
    found = fit(times, range(6))
    assert found.certainty.undetermined == ["beta", "gamma"]
    program = cell("butterfly", 16, 1 << 20).program
    ring = uncertainty(cell("ring", 16, 1 << 20).program, estimate(found), "ring")
    butterfly = uncertainty(program, estimate(found), "butterfly")
    assert ring[0] < 0.01 and butterfly[0] > 1
    assert (ring[1], butterfly[1]) == (False, True)
    time = program.simulate(found.network).seconds
    part = uncertainty(program, estimate(found), "butterfly", calls=2, whole=200 * butterfly[0] * time)
    assert part == (pytest.approx(0.01), False)
    together = 2 * SLOW_ADDER.link.beta + SLOW_ADDER.gamma
    assert 2 * found.network.link.beta + found.network.gamma == pytest.approx(together, rel=1e-3)
    assert summary(found.errors)["worst"] < 1e-3


def test_a_latency_that_long_messages_hide_is_undetermined():
    """It is 0.5 % of the shortest message's time, and times vary by 2 %."""
    slow, schemes = Network("slow", Link(30e-6, 1e-7), source="none", gamma=1e-8), ("ring", "tree", "butterfly")
    found = fit(timed(slow, schemes, sizes=(1 << 16, 1 << 19, 1 << 22), factor=noise(0.02)), range(6))
    assert "alpha" in found.certainty.undetermined
    assert "beta" not in found.certainty.undetermined
    for size, unknown in ((4096, True), (1 << 26, False)):
        assert uncertainty(cell("ring", 64, size).program, estimate(found), "ring")[1] == unknown
    assert fit(timed(slow, schemes), range(6)).certainty.undetermined == []


@pytest.mark.parametrize("delay", [0, 2e-4])
def test_an_interval_covers_times_that_were_left_out(delay):
    """Errors of 5 %; with delays of 0.2 ms, which are most of a short time, long times have narrow intervals."""
    network = Network("t", Link(3e-5, 1e-8), source="none", gamma=1e-9)
    sizes = (4096, 1 << 16, 1 << 20, 1 << 23)
    found = fit(timed(network, FITTED, (2, 3, 4, 5, 6), sizes, noise(0.05, 3, delay)), range(6))
    errors, halves = found.left_out(lambda each: (each.scheme, each.ranks))
    assert summary(errors, halves)["covered"] > 0.93
    short, long = (np.median(halves[side]) for side in (found.measured < 0.01, found.measured > 0.05))
    assert 0.08 < long < 0.16, "1.96 * 0.05, and the uncertainty of the costs"
    assert (short > 0.3) == bool(delay)


@pytest.mark.parametrize("contention", [0, 0.03])
def test_an_interval_beyond_the_measured_ranks_grows_with_an_error_that_grows_in_them(contention):
    """Each rank beyond two makes all times 3 % longer, measured up to 6 ranks; the noise is 2 %."""
    random = noise(0.02)
    near, far = (
        timed(SLOW_ADDER, ranks=ranks, factor=lambda each: random(each) * (1 + contention * (each.ranks - 2)))
        for ranks in ((2, 4, 6), (8, 12))
    )
    found = fitted(RUN, near)
    halves = [uncertainty(each.program, found, each.scheme)[0] for each in far]
    errors = [np.log(each.predicted(found.network) / each.seconds) for each in far]
    assert np.mean(np.abs(errors) < halves) > 0.85
    assert contention or np.median(halves) < 0.06, "about 1.96 * 0.02"


def test_errors_of_a_scheme_count_more_for_itself_and_without_any_there_is_no_interval():
    """A file of an older version has none: how far the times may be off is unknown."""
    times = [(scheme, 1e-3, error) for scheme, error in (("ring", 0.01), ("tree", 0.5))] * 4
    certainty = Certainty(np.ones(5), np.eye(5), times=times)
    ring, butterfly, tree = (certainty.error_of(scheme, 1e-3) for scheme in ("ring", "butterfly", "tree"))
    assert ring < butterfly < tree
    older = NetworkEstimate(SLOW_ADDER, certainty=replace(certainty, times=[]))
    half, _ = uncertainty(cell("ring", 16, 4096).program, older, "ring")
    assert bounds(1.0, half) == (None, None)


def test_wrong_and_simulated_results_are_not_fitted_but_oversubscribed_ranks_of_emulated_hosts_are():
    """There the limited rate of the links dominates."""
    (right,) = timed(SLOW_ADDER, ["ring"], [2], [4])
    wrong, simulated = right.record.but(correct=False), right.record.but(network="gemini")
    assert [each.record for each in measured_programs([right.record, wrong, simulated])] == [right.record]
    records = [Record(ranks=4, oversubscribed=True, emulated=emulated) for emulated in (True, False)]
    assert with_own_cores(records[:1]) == (records[:1], [])
    assert with_own_cores(records[1:])[0] == []
