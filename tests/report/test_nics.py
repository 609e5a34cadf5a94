"""NICs: which carried the bytes, shares of their rate, and idle ones."""

import pytest

from hpcdl.cli import main
from hpcdl.report.render import render
from hpcdl.report.run.findings import findings
from hpcdl.report.run.link_counters import host_rate, idle_nics, section
from hpcdl.report.run.operations import link_rate

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
    assert link_rate(made) == 100 * GB
    page = render([run], "html")
    assert "10.0 %" in page
    assert "8.0 %" not in page  # of one host: no link
    assert "share of the host" in page
    assert link_rate(findings([hand.read(node([0, 0], [(50, OFFICE)]))])[0]) == 0  # carried less than was measured
    options = ["--link", "200gbit", "--network", "infiniband-hdr"]
    assert main(["report", str(tmp_path), *options, "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "40.0 %" in page
    assert "of the expected" in page
