"""Messages that share links take as long as in SimGrid (Casanova et al. 2014), by the same routes and bandwidths."""

import json
import math
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.fabric.network import Link, Network, Site, Wiring
from hpcdl.fabric.topologies.dragonfly import Dragonfly
from hpcdl.fabric.topologies.fat_tree import FatTree
from hpcdl.fabric.topologies.torus import Torus
from hpcdl.fabric.virtual.flows import Flows

PYTHON = "/usr/bin/python3"
"""Debian's, whose package python3-simgrid is not on PyPI."""
PLAIN = Network("lan", Link(0.0, 1e-9), "round numbers", gamma=0)
TOPOLOGIES = {
    "fat tree": FatTree(hosts=[4, 3], oversubscription=[2.5]),
    "torus": Torus(sides=[4, 3], widths=[0.5, 0.8]),
    "dragonfly": Dragonfly(groups=3, routers=2, hosts=2, local=0.7, between=0.4),
}


def has_simgrid():
    command = [PYTHON, "-c", "import simgrid"]
    return Path(PYTHON).exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0


def finished(flows, messages):
    """Return when each message, (begin, source, dest, bytes), is over."""
    waiting, times = sorted(range(len(messages)), key=lambda number: messages[number][0]), {}
    while waiting or flows.next < math.inf:
        if waiting and messages[waiting[0]][0] <= flows.next:
            number = waiting.pop(0)
            begin, source, dest, size = messages[number]
            flows.send(begin, source, dest, size, number)
        else:
            now = flows.next
            times |= dict.fromkeys(flows.advance(now), now)
    return [times[number] for number in range(len(messages))]


@pytest.mark.skipif(not has_simgrid(), reason="SimGrid is not installed: apt-get install python3-simgrid")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_messages_that_share_links_end_when_they_do_in_simgrid(name, seed):
    """60 messages of many sizes and moments, some of them at once."""
    rng = random.Random(seed)
    wiring = Wiring(replace(PLAIN, topology=TOPOLOGIES[name], site=Site(background=0.1)), 12)
    begins = [rng.choice([0.0, 0.5, rng.random()]) for _ in range(60)]
    pairs = [rng.sample(range(12), 2) for _ in begins]
    sizes = [round(10 ** rng.uniform(6, 8.5)) for _ in begins]
    messages = [(begin, *pair, size) for begin, pair, size in zip(begins, pairs, sizes, strict=True)]
    times = finished(Flows(wiring, 12, 0.0), messages)
    routes = [[begin, size, wiring.route(source, dest)[1]] for begin, source, dest, size in messages]
    given = json.dumps({"bandwidths": wiring.bandwidths, "messages": routes})
    script = str(Path(__file__).with_name("simgrid_part.py"))
    run = subprocess.run([PYTHON, script], input=given, capture_output=True, text=True, check=True, timeout=120)
    assert times == pytest.approx(json.loads(run.stdout.splitlines()[-1]), rel=1e-6)
    assert len({*times}) > 30
