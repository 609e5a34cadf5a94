"""The parts of ``check.py``, by name; each is given where to put results, a backend's name and whether to be tiny."""

from gpu.collectives_part import collectives
from gpu.compressors_part import compressors
from gpu.contract_part import contract
from gpu.exact_part import exact
from gpu.layers_part import layers
from gpu.networks_part import networks
from gpu.probes_part import probes
from gpu.training_part import training
from gpu.transports_part import transports

__all__ = [
    "collectives",
    "compressors",
    "contract",
    "exact",
    "layers",
    "networks",
    "probes",
    "training",
    "transports",
]
