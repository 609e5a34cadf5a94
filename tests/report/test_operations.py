import json

import pytest

from hpcdl.fabric.pairs import rounds
from hpcdl.report.render import render
from hpcdl.report.run.findings import findings
from hpcdl.report.run.names import link_title, title_of
from hpcdl.report.run.operations import collective_name
from hpcdl.report.sections.collectives import contention_charts, page, reached

from .conftest import operation, steps

ASKED = '[suite]\nanswer = "collectives"'


def test_one_launch_is_inconclusive(hand, row, whole):
    for scheme, ms in (("ring", 1.0), ("native", 5.0)):
        operation(hand, scheme, 4, steps(ms))
    page = whole(hand.read(suite_text=ASKED))
    assert (
        "\nOne launch decides nothing: for an allreduce on 2 ranks a ring has the lowest median at 4 B, 5.00 "
        "times as fast as the MPI library.\n" in page
    )
    assert "fastest" not in row(page, "ring", size="4 B")
    brief = render([hand.read(suite_text=ASKED)], "md")
    assert row(brief, "4 B") == ["4 B", "ring", "1.00 ms", "not decided", "5.00 ms"]
    assert "1.00 to" not in page + brief


def test_who_is_fastest_at_which_size(hand, row, whole):
    hand.launches = 2
    for size, ring, native in ((4, 2.0, 1.0), (4096, 2.0, 1.0), (65536, 1.0, 1.0), (1 << 20, 1.0, 2.0)):
        for scheme, ms in (("ring", ring), ("native", native)):
            operation(hand, scheme, size, steps(ms))
    page = whole(hand.read(suite_text=ASKED))
    assert (
        "\nFor an allreduce on 2 ranks the MPI library is fastest, or tied, from 4 B to 64 KiB, and a ring "
        "is fastest at 1 MiB, 2.00 times as fast as the MPI library.\n" in page
    )
    for scheme, ratio, which in (("native", "1.00", "fastest"), ("ring", "0.500", "")):
        cells = row(page, "4 KiB", scheme)
        assert [cells[name] for name in ("native / p50", "fastest", "correct")] == [ratio, which, "yes"]
    brief = render([hand.read(suite_text=ASKED)], "md")
    assert row(brief, "64 KiB") == ["64 KiB", "ring", "native", "1.00 ms"]


def test_a_scheme_whose_launches_vary_is_neither_fastest_nor_beaten(hand, row, whole):
    """One launch of five reads 12.3 ms, four 2.4 to 2.6: by each launch alone two_shot would win or lose clearly."""
    for launch, ms in enumerate((2.4, 12.3, 2.5, 2.6, 2.45)):
        operation(hand, "two_shot", 4096, steps(ms), launch=launch)
        operation(hand, "ring", 4096, steps(3.0 + launch / 100), launch=launch)
    page = whole(hand.read(suite_text=ASKED))
    assert "\nFor an allreduce on 2 ranks two-shot is fastest, or tied, at 4 KiB.\n" in page
    low, high = row(page, "two_shot", size="4 KiB")["p50 95 %"].removesuffix(" ms").split(" to ")
    assert float(low) < 2.4
    assert float(high) > 6
    brief = render([hand.read(suite_text=ASKED)], "md")
    assert row(brief, "4 KiB") == ["4 KiB", "two_shot", f"2.50 ms ({low} to {high} ms)", "ring"]


def test_a_scheme_of_one_launch_is_neither_tied_nor_beaten(hand, row, whole):
    for launch, ms in enumerate((1.0, 1.02, 0.99)):
        operation(hand, "ring", 4096, steps(ms), launch=launch)
        operation(hand, "native", 4096, steps(2 * ms), launch=launch)
    operation(hand, "butterfly", 4096, steps(1.4), launch=0)
    page = whole(hand.read(suite_text=ASKED))
    assert (
        "\nNot decided (too few undisturbed launches): for an allreduce on 2 ranks a ring has the lowest median at 4 KiB, "
        "2.00 times" in page
    )
    assert "tied" not in row(page, "butterfly", size="4 KiB").named.values()


def test_what_was_chosen_is_named(hand, row, whole):
    operation(hand, "auto", 4, steps(1.0), chosen="butterfly")
    page = whole(hand.read(suite_text=ASKED))
    assert row(page, "4 B", "auto = butterfly")[-1] == "yes"


def test_a_suite_can_ask_which_share_of_the_links_rate_is_reached(hand):
    """On links of 50 MB/s, 2 ranks: bus bandwidth is size / time."""
    for size, ms in ((4096, 1.0), (1 << 20, 25.0)):
        for launch in range(3):
            for scheme, factor in (("native", 1.0), ("ring", 2.0)):
                times = [ms * factor * (1 + launch / 100)] * 9
                operation(hand, scheme, size, times, launch=launch)
    emulated = {"emulated": {"hosts": 2, "rate": "400mbit", "slow": {}, "bytes_per_second": {"a": 5e7, "b": 5e7}}}
    asked = findings([hand.read(emulated, suite_text='[suite]\nanswer = "bus_bandwidth"')])[0]
    says = reached(asked)
    assert says.headline == (
        "On 2 ranks the MPI library reaches 83.1 % (81.0 to 85.1 %) of the links' rate of 50.0 MB/s at 1 MiB, and "
        "8.1 % at 4 KiB."
    )
    both = "the MPI library 83.1 % (81.0 to 85.1 %), a ring 41.5 %"
    assert says.details[0].startswith(f"At 1 MiB the fastest schemes reach: {both}")
    (table,) = page(asked, bandwidths=True).tables
    assert not page(asked)
    shares = [row[table.header.index("busbw / link")].split()[0] for row in table.rows]
    assert shares == ["8.1", "4.1", "83.1", "41.5"]
    bare = reached(findings([hand.read({}, suite_text='[suite]\nanswer = "bus_bandwidth"')])[0])
    assert bare.headline.startswith("On 2 ranks the MPI library reaches 41.5 MB/s (")
    assert reached(findings([hand.read(emulated)])[0]) is None


def test_schemes_and_networks_have_words():
    for name, words in (
        ("hierarchical(inner=ring,outer=halving_doubling,ranks_per_node=8)",
         "hierarchical (a ring inside a node, halving-doubling between nodes)"),
        ("segmented_ring(segment_bytes=1048576)", "segmented ring in segments of 1 MiB"),
        ("fat_tree(hosts=[16, 4],oversubscription=[2])", "fat tree of 16 x 4 hosts oversubscribed 2 to 1"),
        ("native_persistent", "the library's persistent call"),
    ):  # fmt: skip
        assert title_of(name) == words
    assert [*map(link_title, ("ethernet-100m", "infiniband-hdr", "tcp-100g"))] == [
        "100 Mbit/s Ethernet", "InfiniBand HDR", "100 Gbit/s TCP",
    ]  # fmt: skip
    assert [*map(collective_name, ("reduce_scatter", "all_to_all"))] == ["a reduce-scatter", "an all-to-all"]


def pairs(hand, size, slow_ms):
    """Three ranks, each with each other; exchanges with rank 2 take longer."""
    times = {frozenset({0, 1}): 1.0, frozenset({0, 2}): slow_ms, frozenset({1, 2}): slow_ms}
    whole = {"kind": "pairwise", "collective": "exchange of all pairs", "pattern": "all_pairs", "warmup_steps": 0}
    order = [partners for partners in rounds(3, "all_pairs") for _ in range(30)]
    table = [[times.get(frozenset({rank, partners[rank]}), 0.0) for partners in order] for rank in range(3)]
    hand.case(table, aggregation="fabric", message_bytes=size, correct=True, **whole)


def test_a_page_shows_times_and_rates_of_exchanges_and_the_slowest_host(hand, row):
    whole = {"kind": "pairwise", "collective": "exchange", "pattern": "pair", "warmup_steps": 0, "correct": True}
    hand.case([[2.0] * 30] * 2, aggregation="fabric", message_bytes=1_000_000, **whole)
    pairs(hand, 65536, 4.0)
    hosts = [{"hostname": f"host{rank}"} for rank in range(3)]
    common, cores = [{"hostname": "host"}] * 3, {"cpu": {"physical_cores": 4}}
    one, three = (render([hand.read({**cores, "ranks": ranks})], "md") for ranks in (common, hosts))
    exchange = row(one, "1.00 MB", "fabric")
    assert [exchange[name] for name in ("p50", "algbw")] == ["2.00 ms", "500 MB/s"]
    assert "of the others' speed" not in one
    assert "The link of host2 runs at 25.0 % of the other hosts' speed." in three
    assert (
        "all pairs, 3 ranks, 64 KiB: fastest exchange rank 0 on host0 with rank 1 on host1 in 1.00 ms, slowest rank 0 "
        "on host0 with rank 2 on host2 in 4.00 ms; slowest host host2, at 25.0 % of the other hosts' speed."
        in three
    )
    crowded = render([hand.read({"cpu": {"physical_cores": 2}})], "md")
    assert "in 4.00 ms; ranks share cores, so that no slow host can be named." in crowded


def test_schemes_are_compared_over_topologies(hand, row):
    """In one table, the scheme first that is least behind the fastest."""
    for scheme, times in (("ring", (1.0, 3.0)), ("direct", (0.5, 4.0))):
        for sides, ms in zip(([8], [4, 2]), times, strict=True):
            settings = json.dumps({"topology": {"name": "torus", "sides": sides}})
            fields = {"case": f"{scheme}-{sides}", "ranks": 8, "network": "lan", "settings": settings}
            operation(hand, scheme, 1 << 20, [ms] * 3, **fields)
    run = hand.read(suite_text="[suite]\nname = 's'\nanswer = 'contention'\n")
    text = render([run], "markdown")
    assert (
        "\nOn 8 ranks no scheme is nearly the fastest on all 2 topologies; a direct exchange comes closest, with at most 1.33 "
        "times the fastest time (an allreduce of 1 MiB, lan).\n" in text
    )
    assert "- Fastest on torus of 8: a direct exchange." in text
    assert "- Fastest on torus of 4 x 2: a ring." in text
    assert row(text, "ring") == ["ring", "1.00 ms", "3.00 ms", "2.00"]
    assert text.index("| direct") < text.index("| ring")
    (chart,) = contention_charts(*findings([run]))
    assert (chart.labels, chart.reference) == (["a direct exchange", "a ring"], 1)
    assert chart.values == [pytest.approx((7 / 6, 1, 4 / 3)), pytest.approx((1.5, 1, 2))]
