"""What is measured before a case: the best scheme, everywhere the same, and the costs of links."""

from itertools import count
from time import sleep

import numpy as np
import pytest

from hpcdl import registry
from hpcdl.aggregation.auto import auto
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.cases.keys.key import Choice
from hpcdl.cases.keys.scheme import check_library, table_of
from hpcdl.cases.parts.autotune import (
    Choices,
    candidates,
    choose_by_simulation,
    fitted_bucket_bytes,
    measure_link,
    tune,
)
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.training.parts.bucketing import bucket_bytes

TIMES = {"butterfly": {4: 1e-6, 1000: 11e-6, 2000: 41e-6}, "ring": {4: 5e-6, 1000: 8e-6, 2000: 11e-6}}


def test_candidates_sum_on_any_ranks_of_the_host():
    for name in candidates():
        traits = registry.traits("aggregation", name, Aggregation)
        assert traits.sums
        assert traits.memory != "device"
        assert not (traits.composite or traits.adaptive)
    assert {"ring", "native", "two_shot"} <= set(candidates())
    own = {name for name in candidates() if not registry.traits("aggregation", name, Aggregation).native}
    assert {"ring", "two_shot"} <= set(candidates(simulated=True)) == own


def test_a_size_takes_the_fastest_by_lines_between_and_beyond_the_measured_ones():
    """Between 4 and 1000 bytes 1 + 10 x and 5 + 3 x meet at x = 4/7 of the way."""
    choices = Choices(TIMES)
    for size in (4, 1000, 2000):
        assert choices.name(size) == min(TIMES, key=lambda name, size=size: TIMES[name][size])
    meet = 4 + 996 * 4 // 7
    assert [choices.name(size) for size in (0, meet - 8, meet + 8, 1 << 30)] == 2 * ["butterfly"] + 2 * ["ring"]
    assert Choices({"ring": {8: 2.0}, "direct": {8: 1.0}}).name(1 << 20) == "direct"


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_all_ranks_choose_alike_whatever_their_clocks_say(ranks):
    async def program(comm):
        ticks = count(step=np.random.default_rng(comm.rank).integers(10**5, 10**7))
        choices = await tune(comm, [4, 4000], lambda: int(next(ticks)))
        buffer = np.full(1000, comm.rank + 1.0, np.float32)
        await auto(comm, buffer, choices)
        await auto(comm, buffer[:1], choices)
        return choices.times, buffer[-1], buffer[0]

    answers = in_process(ranks, 3).run(program)
    assert all(answer == answers[0] for answer in answers)
    times, total, first = answers[0]
    assert set(times) == {*candidates()}
    assert (total, first) == (ranks * (ranks + 1) / 2, ranks * total)


@pytest.mark.parametrize("network", ["ethernet-10g", "nvlink-4"])
@pytest.mark.parametrize("ranks", [2, 5, 16])
def test_foretold_choices_are_the_simulation_s_fastest(ranks, network):
    sizes = [4, 65536, 1 << 22]
    choices = choose_by_simulation(ranks, NETWORKS[network], sizes, "float32")
    for size in sizes:
        fastest = {}
        for name in choices.times:
            world = simulated(ranks, NETWORKS[network])
            world.run(lambda comm, name=name, n=size: registry.find("aggregation", name)(comm, phantom(n // 4)))
            fastest[name] = world.now
        assert fastest[choices.name(size)] == min(fastest.values())


@pytest.mark.parametrize("size", [4, 2048, 2052, 40_000])
def test_without_choices_a_rule_of_thumb(size):
    chosen = "butterfly" if size <= 2048 else "halving_doubling"
    counted = []
    for name in (chosen, "auto"):
        world = in_process(8)
        world.run(lambda comm, name=name: registry.find("aggregation", name)(comm, np.ones(size // 4, np.float32)))
        counted.append((world.messages, world.bytes))
    assert counted[0] == counted[1]


RULE = '[[rule]]\nranks = {}\nfrom_bytes = {}\naggregation = "{}"\n'
TABLE = RULE.format(2, 64, "ring") + RULE.format(2, 4096, "native") + RULE.format(8, 8, "butterfly")


def test_a_table_has_the_schemes_of_the_nearest_number_of_ranks(tmp_path):
    (tmp_path / "auto.toml").write_text(TABLE)
    choice = Choice("aggregation", "auto", {"table": str(tmp_path / "auto.toml")})
    assert table_of(choice, 1) == table_of(choice, 7) == {64: "ring", 4096: "native"}
    assert table_of(choice, 100) == {8: "butterfly"}
    assert table_of(Choice("aggregation", "auto"), 2) is None
    answers = in_process(2).run(lambda comm: tune(comm, [8], table=table_of(choice, 2)))
    for choices in answers:
        assert [choices.name(size) for size in (0, 8, 64, 4095, 4096, 1 << 30)] == 4 * ["ring"] + 2 * ["native"]
        assert choices[64] is registry.find("aggregation", "ring")
    with pytest.raises(ValueError, match="leave it out of a simulated case"):
        check_library(choice, "gemini")
    for text, message in [
        (TABLE.replace("ring", "rign"), "unknown 'rign'"),
        (TABLE.replace("ring", "mine:scheme"), "'mine'"),
        (TABLE.replace("ring", "auto"), "'auto' is not a scheme that auto chooses from"),
        *(
            (text, "is no table of hpcdl tune")
            for text in ("rule = 3", "", "rule = []", RULE.format("'two'", 1, "ring"))
        ),
    ]:
        (tmp_path / "auto.toml").write_text(text)
        with pytest.raises(ValueError, match=message):
            check_library(choice)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("name", ["ethernet-1g", "gemini"])
def test_alpha_and_beta_are_the_networks(name, ranks):
    network = NETWORKS[name]
    world = simulated(ranks, network, compute=lambda _rank, _label: 0.0)

    def clock():
        return round(world.running.time * 1e12) / 1e3

    async def program(comm):
        return await measure_link(comm, clock), await fitted_bucket_bytes(comm, sleep, clock)

    for (alpha, beta), size in world.run(program):
        # the short message's 8 bytes are in alpha; clocks count whole nanoseconds
        assert alpha == pytest.approx(network.link.alpha + 8 * network.link.beta, abs=2e-9)
        assert beta == pytest.approx(network.link.beta, rel=1e-3)
        assert size == pytest.approx(bucket_bytes(alpha, beta, ranks), rel=1e-9)


def test_alpha_beside_work_has_what_messages_take_longer_there():
    """Ranks come to their messages 3 ms late while something of theirs runs."""
    link = NETWORKS["gemini"].link
    late, worked = set(), []
    world = simulated(2, NETWORKS["gemini"], compute=lambda rank, label: 3e-3 * (label == "late" and rank in late))

    class Busy:
        def __init__(self, comm):
            self._comm = comm

        def __getattr__(self, name):
            return getattr(self._comm, name)

        async def exchange(self, *arguments):
            await self._comm.exchange(*arguments)
            await self._comm.compute("late", lambda: None)

    async def program(comm):
        def work(seconds):
            worked.append(seconds)
            late.add(comm.rank)

        return await measure_link(Busy(comm), lambda: round(world.running.time * 1e12) / 1e3, work)

    for alpha, beta in world.run(program):
        assert alpha == pytest.approx(3e-3 + link.alpha, rel=1e-3)
        assert beta == pytest.approx(link.beta, rel=1e-3)
    assert worked == pytest.approx([2 * (link.alpha + (1 << 18) * link.beta)] * (2 * 8), rel=1e-3)
