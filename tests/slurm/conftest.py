import pytest
from slurm.cluster import Cluster, lacking


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """A Slurm of four virtual nodes with eight cores each, in racks of two."""
    if reason := lacking():
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
