"""Messages per second of CPU time that one core simulates, for schemes on all ranks and for training steps.

python tests/fabric/engine_scale.py [PROGRAM ...]

Nothing here is simulated by symmetry, except in the step of 1,024 ranks. PROGRAM: part of a name below.
"""

import resource
import sys
import time
from dataclasses import replace
from functools import partial

from hpcdl import registry, suite
from hpcdl.cases.simulation.step_simulation import Conditions, virtual_step
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.topologies.fat_tree import FatTree
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.simulated import simulated

ETHERNET = NETWORKS["ethernet-10g"]
COLLECTIVES = {
    "ring": (256, 1 << 20, ETHERNET),
    "ring on 8 per host": (256, 1 << 20, ETHERNET.on(8)),
    "halving_doubling": (4096, 1 << 20, ETHERNET),
    "butterfly": (4096, 1 << 20, ETHERNET),
    "tree": (8192, 1 << 20, ETHERNET),
    "direct": (128, 1 << 20, ETHERNET),
    "parameter_server": (4096, 1 << 10, ETHERNET),
    "ring on a fat tree": (64, 1 << 20, replace(ETHERNET, topology=FatTree(hosts=[8, 8], oversubscription=[4.0]))),
}
STEP = """
[suite]
name = "s"
question = "?"
[[case]]
kind = "replay"
model = "{}"
training = {{name = "synchronous", bucket_bytes = 2097152}}
aggregation = "ring"
ranks = {}
batch_per_rank = 2
flops = 1e11
network = "ethernet-10g"
"""
STEPS = {
    "step of googlenet": ("googlenet", 64, 0.1),
    "step of googlenet by symmetry": ("googlenet", 1024, 0.0),
}


def collective(name):
    ranks, length, network = COLLECTIVES[name]
    scheme = registry.find("aggregation", name.split(" on ")[0])
    world = simulated(ranks, network)

    async def program(comm):
        await scheme(comm, phantom(length))

    world.run(program)
    return sum(world.messages), f"{ranks} ranks, {world.now!r} s"


def training(name):
    model, ranks, jitter = STEPS[name]
    spec = suite.parse(STEP.format(model, ranks), "s.toml").cases[0].spec
    step = virtual_step(spec, Conditions(spec.cluster, spec.compute_times, spec.images, jitter=jitter))
    return step.messages * step.simulated_ranks, f"{ranks} ranks, {step.seconds!r} s"


def main(*wanted):
    programs = {name: partial(collective, name) for name in COLLECTIVES}
    programs |= {name: partial(training, name) for name in STEPS}
    for name, program in programs.items():
        if not wanted or any(part in name for part in wanted):
            begin = time.process_time()
            messages, outcome = program()
            took = time.process_time() - begin
            print(f"{name:30} {messages:9,} messages {took:6.2f} s {messages / took:9,.0f} a second; {outcome}")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
