"""NICs: which carried the bytes, shares of their rate, and idle ones."""

import csv
import json

import pytest

from hpcdl.cli import main
from hpcdl.fabric.network import Link, Network
from hpcdl.report.render import render
from hpcdl.report.run.findings import Reference, findings
from hpcdl.report.run.link_counters import host_rate, idle_nics, section

PORT = {"driver": "mlx5_core", "rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE"}
CARD = {"driver": "mlx5_core", "rate": "100000 Mbit/s", "state": "up"}
OFFICE = {"driver": "igb", "rate": "1000 Mbit/s", "state": "up"}
LOOP = {"driver": "unknown", "rate": "unknown", "state": "unknown"}
GB = 10**9


def node(ports=(), cards=(), hosts=2, **environment):
    """An environment whose hosts carried GB: by ports of InfiniBand (read in words of 32 bits), and by cards."""
    described = {f"mlx5_{number}/1": PORT for number in range(len(ports))}
    grown = {f"mlx5_{number}/1": {"port_xmit_data": round(share * GB / 4)} for number, share in enumerate(ports)}
    grown |= {f"eth{number}": {"rx_bytes": round(share * GB)} for number, (share, _) in enumerate(cards)}
    grown |= {"lo": {"rx_bytes": 999 * GB}, "tcp": {}}
    network = {"lo": LOOP} | {f"eth{number}": card for number, (_, card) in enumerate(cards)}
    counters = {"link_counters": {f"n{host}": grown for host in range(hosts)}}
    return {"network": network, "infiniband": described or "unknown", **counters, **environment}


@pytest.mark.parametrize(
    ("environment", "gigabits"),
    [
        (node([50], [(1, OFFICE)]), 400),
        (node([50, 50, 0], [(1, OFFICE)]), 800),
        (node([50], [(49, {**CARD, "driver": "ib_ipoib"})]), 400),  # IPoIB: the same bytes
        (node([0.1], [(50, CARD), (1, OFFICE)]), 100),  # TCP, although InfiniBand is up
        (node([], [(50, CARD), (40, OFFICE)]), 0),
        *(
            (node([], [(50, {**CARD, "rate": rate})]), 0)
            for rate in ("unknown", "65535 Mbit/s", "4294967295 Mbit/s")
        ),
        (node([], [(50, CARD), (1, {**CARD, "driver": "cxi_eth"})]), 0),  # bytes of MPI are not counted
        (node([]), 0),
        (node([0, 0], [(0, CARD)]), 0),
        ({}, 0),
    ],
)
def test_the_rate_is_that_of_the_nics_that_carried_the_bytes(environment, gigabits):
    assert host_rate(environment) == gigabits * GB / 8


def test_hosts_that_differ_have_no_rate():
    environment = node([50, 50])
    environment["link_counters"]["n1"] = {"mlx5_0/1": {"port_xmit_data": 9}, "mlx5_1/1": {"port_xmit_data": None}}
    assert host_rate(environment) == 0
    assert host_rate(node([50], link_counters={"n0": None})) == 0


def test_a_port_whose_counter_was_reset_or_saturated_is_unknown_not_idle():
    grown = {f"mlx5_{port}/1": {"port_xmit_data": None if port else GB} for port in range(4)}
    ranks = [{"hostname": host} for host in ("n0", "n1") for _ in range(8)]
    environment = node([0] * 4, ranks=ranks, link_counters={"n0": grown, "n1": grown})
    assert not [*idle_nics(environment)]
    assert host_rate(environment) == 0
    (table,) = section(environment).tables
    assert [row[4:] for row in table.rows] == 2 * [("4.00 GB", "-"), *[("-", "-")] * 3]


def test_half_of_the_nics_idle():
    """As in a report to UCX: 4 of 8 ports carried everything. A management port is no idle NIC."""
    ranks = [{"hostname": host} for host in ("n0", "n1") for _ in range(8)]
    (line,) = idle_nics(node([9, 9, 9, 9, 0, 0.01, 0, 0], [(0, OFFICE)], ranks=ranks))
    says = "4 of 8 NICs of n0 were idle: mlx5_4/1, mlx5_5/1, mlx5_6/1, mlx5_7/1; 1 more host alike."
    assert line.startswith(says)
    assert not [*idle_nics(node([9, 0], ranks=ranks[::8]))]  # one rank a host needs one
    assert not [*idle_nics(node([9, 9, 9, 0], ranks=ranks))]
    assert not [*idle_nics(node([0, 0], [(9, CARD), (0, CARD)], ranks=ranks))]
    assert not [*idle_nics(node([9, 0, 0], ranks=ranks, hosts=1))]  # files, not messages
    assert not [*idle_nics({})]


def test_shares_of_a_link_and_of_the_expected(hand, tmp_path):
    """100 MB in 10 ms are 10 GB/s, and the bus bandwidth of an allreduce on 2 ranks."""
    fields = {"collective": "allreduce", "aggregation": "ring", "message_bytes": 10**8, "dtype": "float32"}
    hand.case([[10.0] * 9] * 2, kind="collective", nodes=2, **fields)
    hand.case([[5.0] * 9] * 2, kind="collective", nodes=1, case="within", **fields | {"message_bytes": 4 * 10**7})
    run = hand.read(node([50, 50]))
    (made,) = findings([run])
    assert made.link == 100 * GB
    page = render([run], "html")
    assert "10.0&nbsp;%" in page
    assert "8.0&nbsp;%" not in page  # of one host: no link
    assert "share of the host" in page
    assert findings([hand.read(node([0, 0], [(50, OFFICE)]))])[0].link == 0  # carried less than was measured


def test_every_writer_has_the_shares_of_a_stated_link_and_network(hand, tmp_path, capsys, monkeypatch):
    """10 GB/s of 200 Gbit/s are 40 %; a message of 50 MB takes 2 ms there, and the measured sum 10 ms."""
    fields = {"collective": "allreduce", "message_bytes": 10**8, "dtype": "float32", "nodes": 2}
    for aggregation, ms in (("native", 9.0), ("ring", 10.0)):
        hand.case([[ms] * 9] * 2, kind="collective", aggregation=aggregation, **fields)
    hand.case([[10.0] * 9] * 2, kind="pairwise", pattern="pair", aggregation="fabric", **fields)
    hand.read({})
    report, options = ["report", str(tmp_path)], ["--link", "200gbit", "--network", "infiniband-hdr"]
    for form in ("md", "html", "tex"):
        assert main([*report, *options, "-o", str(tmp_path / f"x.{form}")]) == 0
        text = (tmp_path / f"x.{form}").read_text().replace("\\", "").replace("~", " ").replace("&nbsp;", " ")
        for words in ("busbw / link", "of the expected", "40.0 %"):
            assert words in text, (form, words)
    capsys.readouterr()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main([*report, *options]) == 0
    shown = capsys.readouterr().out
    assert "44.4 %" in shown and "% (ring)" in shown  # of the library no time is known
    assert main([*report, *options, "--json"]) == 0
    library, ring, pair = json.loads(capsys.readouterr().out)["cases"]
    assert {row["link_bytes_per_second"] for row in (library, ring, pair)} == {25 * GB}
    assert library["expected_seconds"] is None
    assert 0.004 < ring["expected_seconds"] < 0.01 and 0.004 < pair["expected_seconds"] < 0.01
    assert main([*report, *options, "-o", str(tmp_path / "x.csv")]) == 0
    (_, of_ring, _) = csv.DictReader((tmp_path / "x.csv").read_text().splitlines())
    assert float(of_ring["expected_seconds"]) == ring["expected_seconds"]


def test_expected_times_are_those_of_ranks_that_share_hosts(hand):
    """Four ranks: in a butterfly's second exchange, two of one host send at once to the other host."""
    fields = {"kind": "collective", "collective": "allreduce", "aggregation": "butterfly", "dtype": "float32"}
    for nodes in (1, 2, 4):
        hand.case([[9.0] * 9] * 4, nodes=nodes, message_bytes=nodes * 10**8, case=f"{nodes} hosts", **fields)
    network = Network("by hand", Link(0.0, 1e-9), "none", gamma=0.0, inside=Link(0.0, 1e-10))
    (made,) = findings([hand.read({})], Reference(network=network))
    assert [row.expected_seconds for row in made.records] == pytest.approx([0.02, 0.02 + 0.4, 0.8])


def test_a_wrong_option_is_refused_for_every_writer(hand, refused):
    hand.train([[2.0] * 8]).read()
    files = (["-o", f"x.{form}"] for form in ("md", "html", "tex", "csv", "json", "svg"))
    for output in ([], ["--json"], *files):
        assert "did you mean 'infiniband-hdr'" in refused("report", ".", "--network=infiniband-hdx", *output)
        assert "must be a rate" in refused("report", ".", "--link=3parsec", *output)
    assert not [*hand.folder.glob("x.*")]


def test_options_without_an_effect_are_refused_or_named(hand, tmp_path, capsys):
    hand.train([[2.0] * 8]).read()
    for option in ("--link=1gbit", "--network=ethernet-10g", "--figure=Speedup", "--table=Scaling"):
        assert main(["report", str(tmp_path), option, "-o", str(tmp_path / "x.json.xz")]) == 2
        assert f"takes no {option.partition('=')[0]}\n" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--link=1gbit", "--network=ethernet-10g"]) == 0
    page = capsys.readouterr().out
    assert "--link is not used" in page and "--network is not used" in page
