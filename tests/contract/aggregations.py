"""Which aggregations are held to what: all that the folder offers, so that a new file is tested as it is."""

from hpcdl import registry

SCHEMES = [name for name in registry.names("aggregation") if name != "none"]
"""All that sum; ``none`` says that it does not."""


def scheme(name):
    return registry.find("aggregation", name)
