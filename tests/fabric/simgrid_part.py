"""Finishing times of messages by SimGrid: a program of Debian's Python, which has its module.

Reads {"bandwidths": bytes a second of each link, "messages": [[begin, bytes, links of the route], ...]} as JSON.
"""

import json
import sys

from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone, this_actor

EXACT = ("network/model:CM02", "network/bandwidth-factor:1", "network/latency-factor:1", "network/TCP-gamma:0")
EXACT += ("network/crosstraffic:0", "network/weight-S:0", "maxmin/precision:1e-12", "surf/precision:1e-12")


def send(begin, size, mailbox):
    this_actor.sleep_until(begin)
    mailbox.put(0, size)


def receive(number, mailbox, times):
    mailbox.get()
    times[number] = Engine.clock


engine = Engine(["simgrid", "--log=root.thres:critical", *(f"--cfg={setting}" for setting in EXACT)])
given = json.load(sys.stdin)
zone = NetZone.create_full_zone("all")
links = [
    LinkInRoute(zone.create_link(f"link {number}", rate).set_latency(0).seal())
    for number, rate in enumerate(given["bandwidths"])
]
times = [0.0] * len(given["messages"])
ends = []
for number, (_, _, route) in enumerate(given["messages"]):
    sides = [zone.create_host(f"{side} {number}", 1e9).seal() for side in ("from", "to")]
    zone.add_route(sides[0].netpoint, sides[1].netpoint, None, None, [links[link] for link in route], False)
    ends.append(sides)
zone.seal()
for number, (begin, size, _) in enumerate(given["messages"]):
    mailbox = Mailbox.by_name(str(number))
    Actor.create(f"sender {number}", ends[number][0], send, begin, size, mailbox)
    Actor.create(f"receiver {number}", ends[number][1], receive, number, mailbox, times)
engine.run()
print("\n" + json.dumps(times))
