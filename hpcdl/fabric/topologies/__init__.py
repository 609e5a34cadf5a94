"""Topologies of simulated clusters: each file offers a class, with its links and the route between two hosts.

::

    host ──port──> switch ──link──> switch ──port──> host        links are shared by the messages under way

A topology (:class:`hpcdl.fabric.network.Topology`) numbers places for hosts, switch by switch, and names the
links between switches with their bandwidth, relative to a host's port. ``route`` returns the names in order; it
is empty for two hosts of one switch. Placement of hosts, background load and failed links are settings of every
topology (:class:`hpcdl.fabric.network.Site`); the engine shares bandwidth (:mod:`hpcdl.fabric.virtual.flows`).

The one rule: a route depends on its two ends only. Adaptive routes of real machines are not modelled. Open
``fat_tree.py`` first.
"""

from typing import Final

MAX_PLACES: Final = 1 << 20
MAX_LINKS: Final = 1 << 22
"""Of a simulated cluster: ten times the largest machines."""


def check_size(places: int, links: int) -> None:
    """Raise ValueError for more places for hosts, or links, than a simulation can hold."""
    if places > MAX_PLACES or links > MAX_LINKS:
        most = f"at most {MAX_PLACES} and {MAX_LINKS}"
        raise ValueError(f"has {places} places for hosts and {links} links, but may have {most}")
