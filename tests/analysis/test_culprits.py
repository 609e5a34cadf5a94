"""Slow hosts among hosts that change from night to night; the larger figures are from history_figures.py."""

import re

import numpy as np
import pytest
from contract.nights import slow_hosts, slow_links

from hpcdl.analysis.over_time import suspects
from hpcdl.analysis.over_time.explanations import explanations


def names_of(departures):
    return [f"n{host:02d}" for host in range(len(departures))]


def by_links(departures):
    return suspects.by_departures(dict(zip(names_of(departures), departures, strict=True)), "host")


def by_times(departures, times):
    return suspects.by_times(times, np.isfinite(departures), names_of(departures), {})


@pytest.mark.parametrize("seed", range(2))
def test_a_slow_host_is_named_by_link_measurements(seed):
    (slow,), departures, _ = slow_hosts(np.random.default_rng(seed), runs=60, onset=10)
    (suspect,) = by_links(departures)
    there = np.flatnonzero(np.isfinite(departures[slow, 10:])) + 10
    assert (suspect.name, suspect.first, suspect.ended) == (f"n{slow:02d}", there[0], None)
    assert suspect.found <= there[3]
    assert suspect.ratio == pytest.approx(1 / 0.85, rel=0.05)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("slow", [1, 2, range(12)])
def test_slow_hosts_are_named_by_the_times_of_cases_and_no_others(seed, slow):
    """Of half a switch that is slow any run has a host: the others are not told apart, and none is accused."""
    rng = np.random.default_rng(seed)
    slow, departures, times = slow_hosts(rng, slow, runs=100, onset=40, hosts=24, per_run=(4, 12), slower=0.2)
    named = {int(suspect.name[1:]) for suspect in by_times(departures, times) if suspect.kind == "host"}
    assert named == slow if len(slow) <= 2 else named <= slow


def test_of_two_hosts_that_are_always_together_one_is_slow():
    slow, departures, times = slow_hosts(np.random.default_rng(0), runs=80, onset=40, hosts=8, per_run=3)
    departures = np.vstack([departures, departures[[*slow]]])
    (group,) = by_times(departures, times)
    assert group.name == f"one of n[{slow.pop():02d},08]"
    assert (group.kind, group.ended) == ("hosts", None)
    times = np.random.default_rng(3).normal(0, 0.02, (5, 40))
    times[:, 20:] += 0.3
    assert not by_times(np.zeros((4, 40)), times), "hosts that are in all runs cannot be told apart"


@pytest.mark.parametrize("seed", range(3))
def test_usual_hosts_a_change_of_all_bad_nights_or_two_states_name_none(seed):
    """In a system with two states slow nights follow each other, and some host is in all of them."""
    rng = np.random.default_rng(seed)
    _, departures, times = slow_hosts(rng, 0, runs=100, onset=100, hosts=24, per_run=(4, 12))
    bad = np.where(rng.random(100) < 0.05, 0.2, 0)
    states = 0.2 * (np.cumsum(rng.random(100) > 0.93) % 2)
    for slower in (0.0, bad + 0.2 * (np.arange(100) >= 60), states):
        assert not by_times(departures, times + slower)
    for spread in (0.0, 0.03):
        assert not by_links(slow_hosts(rng, 0, runs=60, onset=60, spread=spread)[1])
    assert not by_links(np.full((3, 20), np.nan))


@pytest.mark.parametrize("per_run", [4, 8])
def test_outliers_in_a_row_name_no_link_of_an_archive_and_a_slow_link_is_named(per_run):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        assert not suspects.by_departures(slow_links(rng, runs=100, per_run=per_run), "link")
        departures = slow_links(rng, runs=60, onset=20, slow=["1 - 2"], per_run=per_run)
        (link,) = suspects.by_departures(departures, "link")
        assert link.name == "1 - 2"
        assert 3 <= np.isfinite(departures["1 - 2"][link.first : link.found + 1]).sum() <= 4


@pytest.mark.parametrize("slow", [range(4), range(8), range(5, 12)])
def test_slow_neighbours_are_named_by_the_times_of_cases(slow):
    """Eight of 32 hosts a night: nearly each has one of eight slow ones. Those at the ends may need more nights."""
    for seed in range(3):
        _, departures, times = slow_hosts(np.random.default_rng(seed), slow, runs=100, onset=20, per_run=8)
        (group,) = by_times(departures, times)
        assert (group.kind, group.ended) == ("neighbours", None)
        first, last = map(int, re.fullmatch(r"n\[(\d+)-(\d+)\]", group.name).groups())
        assert {first - slow[0], slow[-1] - last} <= {0, 1}


def test_slow_neighbours_by_link_measurements_are_one_finding():
    """Of 32 hosts of one prefix four are no large share."""
    _, departures, _ = slow_hosts(np.random.default_rng(0), [3, 4, 5, 6, 20], runs=70, onset=10)
    every = suspects.grouped(by_links(departures), names_of(departures), {})
    assert {(suspect.kind, suspect.name) for suspect in every} == {("host", "n20"), ("neighbours", "n[03-06]")}


def expanded(listed):
    """Yield the names of a list of hosts by slurm.conf(5): numbers are padded as a range's first, brackets end a name."""
    for name in re.split(r",(?![^[]*\])", listed):
        before, bracket, rest = name.partition("[")
        if not bracket:
            yield name
            continue
        assert name.endswith("]")
        numbers, _, rest = rest.partition("]")
        for first, _, last in (part.partition("-") for part in numbers.split(",")):
            for number in range(int(first), int(last or first) + 1):
                yield from expanded(f"{before}{number:0{len(first)}d}{rest}")


def test_hosts_are_listed_as_slurm_does():
    assert [*expanded("a[0-1]n[08-09,7],b")] == ["a0n08", "a0n09", "a0n7", "a1n08", "a1n09", "a1n7", "b"]
    stated = {
        "login login1 login2 n09 n10 n07 n100 a2.x1 a1.x1 n2-ib": "login,a1.x1,a2.x1,n2-ib,login[1-2],n[07,09-10,100]",
        "c08 c09 c010": "c[08-09,010]",
        "server1 server2 server03": "server[1-2,03]",
        "n9 n10 n11": "n[9-11]",
        "n009 n010": "n[009-010]",
        "rack1-n1 rack1-n02 rack10-n2": "rack1-n[1,02],rack10-n2",
    }
    assert {hosts: suspects.host_list(hosts.split()) for hosts in stated} == stated
    random = np.random.default_rng(1)
    for _ in range(500):
        names = {
            f"{random.choice(['n', 'rack1-n', 'rack10-n', 'login', ''])}{number:0{random.integers(1, 5)}d}"
            f"{random.choice(['', '', '.x1', '-ib'])}"
            for number in random.choice([0, 95, 990]) + random.integers(0, 15, random.integers(1, 30))
        }
        assert sorted(expanded(suspects.host_list(names))) == sorted(names)


@pytest.mark.parametrize("seed", range(3))
def test_a_later_run_alters_no_named_host(seed):
    rng = np.random.default_rng(seed)
    _, departures, times = slow_hosts(rng, 2, runs=70, onset=15, slower=0.1, spread=0.03)

    def named(end):
        every = by_links(departures[:, :end]) + by_times(departures[:, :end], times[:, :end])
        return [(suspect.name, suspect.source, suspect.first, suspect.found) for suspect in every]

    for end in (20, 30, 40, 55):
        assert named(end) == [suspect for suspect in named(70) if suspect[-1] < end]


AWAY = "." * suspects.WINDOW


@pytest.mark.parametrize(
    ("nights", "expected"),
    [
        ("ss", []),
        ("ssuss", []),  # three in a row
        ("sss", [(10, 12, None, 3)]),
        ("sss.us", [(10, 12, None, 4)]),  # one usual run clears none
        ("sss.us.u.us", [(10, 12, 17, 4)]),  # two in a row of its own do, from the first of them on
        (f"sss{AWAY[1:]}s", [(10, 12, None, 4)]),
        (f"sss{AWAY}", [(10, 12, 12 + len(AWAY), 3)]),
        (f"sss{AWAY}sss", [(10, 12, 12 + len(AWAY), 3), (73, 75, None, 3)]),
    ],
)
def test_a_suspect_lasts_until_two_usual_runs_in_a_row_or_sixty_runs_without_it(nights, expected):
    """Slow (s) and usual (u) nights of a host, and those without it, after ten usual ones: ``runs`` are its slow ones."""
    departures = np.random.default_rng(4).normal(0, 0.01, (8, 10 + len(nights)))
    departures[2, 10:] += [{"s": 0.3, "u": 0.0, ".": np.nan}[night] for night in nights]
    named = [(one.first, one.found, one.ended, one.runs) for one in by_links(departures) if one.name == "n02"]
    assert named == expected


@pytest.mark.parametrize(
    ("later", "cleared"), [("us", None), ("usuu", 43), ("uu", 41), ("." * 58, None), ("." * 61, 101)]
)
def test_a_host_named_by_times_lasts_as_long(later, cleared):
    """It is in all nights from 20 to 40, each with three others."""
    rng = np.random.default_rng(5)
    there = np.argsort(rng.random((41 + len(later), 16)), axis=1).argsort(axis=1).T < 4
    there[0, :20], there[0, 20:41] = False, True
    there[0, 41:] = [night != "." for night in later]
    slow = np.zeros(there.shape[1], bool)
    slow[20:41], slow[41:] = True, [night == "s" for night in later]
    slow[25:35:2], there[0, 25:35:2] = False, False
    (host,) = explanations(slow, np.ones(len(slow), bool), there, [range(16)])
    assert (host.hosts, host.first, host.ended) == ([0], 20, cleared)
