from hpcdl.fabric.pairs import rounds
from hpcdl.report.render import render


def steps(ms):
    return [500.0] * 2 + [ms * (1 + 0.001 * (n % 5 - 2)) for n in range(30)]


def operation(hand, scheme, size, ms, **fields):
    whole = {"kind": "collective", "collective": "allreduce", "dtype": "float32", "warmup_steps": 0, **fields}
    hand.case([ms] * 2 if isinstance(ms, list) else [[ms]], aggregation=scheme, message_bytes=size, **whole)


def test_one_launch_is_inconclusive(hand, row, whole):
    for scheme, ms in (("ring", 1.0), ("native", 5.0)):
        operation(hand, scheme, 4, steps(ms)[2:], correct=True)
    page = whole(hand.read())
    assert "lowest median, inconclusive: ring at 4 B; one launch only." in page
    assert "fastest" not in row(page, "4 B", "ring")
    assert "| fastest" not in page
    assert "fastest native" not in page
    brief = render([hand.read()], "md")
    assert "| ring 1.00 ms +-0 %, native 5.00 ms +-0 % |" in brief
    for text in (page, brief):
        assert "One launch: intervals are over its repetitions, and launches vary more." in text


def test_who_is_fastest_at_which_size(hand, row, whole):
    hand.launches = 2
    for size, ring, native in ((4, 2.0, 1.0), (4096, 2.0, 1.0), (65536, 1.0, 1.0), (1 << 20, 1.0, 2.0)):
        for scheme, ms in (("ring", ring), ("native", native)):
            operation(hand, scheme, size, steps(ms)[2:], correct=True)
    page = whole(hand.read())
    assert (
        "\nallreduce, 2 ranks, float32: fastest native from 4 B to 4 KiB; ring or native (tied) at 64 KiB; "
        "ring at 1 MiB; ring reaches 1.05 GB/s (busbw) at 1 MiB." in page
    )
    assert row(page, "4 KiB", "native")[10:] == ["1.00", "fastest", "yes"]
    assert row(page, "4 KiB", "ring")[10:] == ["0.500", "", "yes"]
    assert row(render([hand.read()], "md"), "64 KiB")[1] == "ring 1.00 ms +-0 % ~, native 1.00 ms +-0 % ~"
    assert "launches vary" not in page


def test_a_scheme_whose_launches_vary_is_neither_fastest_nor_beaten(hand, row, whole):
    """One launch of five reads 12.3 ms, four 2.4 to 2.6: by each launch alone two_shot would win or lose clearly."""
    for launch, ms in enumerate((2.4, 12.3, 2.5, 2.6, 2.45)):
        operation(hand, "two_shot", 4096, steps(ms)[2:], correct=True, launch=launch)
        operation(hand, "ring", 4096, steps(3.0 + launch / 100)[2:], correct=True, launch=launch)
    page = whole(hand.read())
    assert "fastest two_shot or ring (tied) at 4 KiB." in page
    assert "one launch only" not in page
    assert "launches vary" not in page
    low, high = row(page, "4 KiB", "two_shot")[3].removesuffix(" ms").split(" to ")
    assert float(low) < 2.4
    assert float(high) > 6
    brief = render([hand.read()], "md")
    assert "two_shot 2.50 ms (too few launches) ~, ring 3.02 ms +-1 % ~" in brief


def test_a_scheme_of_one_launch_is_neither_tied_nor_beaten(hand, row, whole):
    for launch, ms in enumerate((1.0, 1.02, 0.99)):
        operation(hand, "ring", 4096, steps(ms)[2:], correct=True, launch=launch)
        operation(hand, "native", 4096, steps(2 * ms)[2:], correct=True, launch=launch)
    operation(hand, "butterfly", 4096, steps(1.4)[2:], correct=True, launch=0)
    page = whole(hand.read())
    assert "lowest median, inconclusive: ring at 4 KiB" in page
    assert "tied" not in row(page, "4 KiB", "butterfly")


def test_what_was_chosen_is_named(hand, row, whole):
    operation(hand, "auto", 4, steps(1.0)[2:], correct=True, chosen="butterfly")
    page = whole(hand.read())
    assert row(page, "4 B", "auto = butterfly")[-1] == "yes"


def pairs(hand, size, slow_ms):
    """Three ranks, each with each other; exchanges with rank 2 take longer."""
    times = {frozenset({0, 1}): 1.0, frozenset({0, 2}): slow_ms, frozenset({1, 2}): slow_ms}
    whole = {"kind": "pairwise", "collective": "exchange of all pairs", "pattern": "all_pairs", "warmup_steps": 0}
    table = [
        [
            times.get(frozenset({rank, partners[rank]}), 0.0)
            for partners in rounds(3, "all_pairs")
            for _ in range(30)
        ]
        for rank in range(3)
    ]
    hand.case(table, aggregation="fabric", message_bytes=size, correct=True, **whole)


def test_a_page_shows_times_and_rates_of_exchanges_and_the_slowest_host(hand, row):
    whole = {"kind": "pairwise", "collective": "exchange", "pattern": "pair", "warmup_steps": 0, "correct": True}
    hand.case([[2.0] * 30] * 2, aggregation="fabric", message_bytes=1_000_000, **whole)
    pairs(hand, 65536, 4.0)
    hosts = [{"hostname": f"host{rank}"} for rank in range(3)]
    one, three = (
        render([hand.read({"cpu": {"physical_cores": 4}, "ranks": ranks})], "md")
        for ranks in ([{"hostname": "host"}] * 3, hosts)
    )
    exchange = row(one, "1.00 MB", "fabric")
    assert [exchange[name] for name in ("p50", "95 %", "algbw")] == ["2.00 ms", "2.00 to 2.00 ms", "500 MB/s"]
    assert "of the others' speed" not in one
    assert (
        "all pairs, 3 ranks, 64 KiB: fastest rank 0 on host0 with rank 1 on host1 in 1.00 ms, slowest rank 0 "
        "on host0 with rank 2 on host2 in 4.00 ms; slowest host2, 0.25 of the others' speed." in three
    )
    crowded = render([hand.read({"cpu": {"physical_cores": 2}})], "md")
    assert "in 4.00 ms; ranks share cores, so that no slow host can be named." in crowded
