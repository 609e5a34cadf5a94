"""Placement of ranks beside NUMA domains, NICs and GPUs: excerpts of the files of real machines."""

import shutil

import pytest
from launch.test_preflight import judge, probe

from hpcdl.launch import preflight
from hpcdl.launch.machine import core_numbers, locality
from hpcdl.launch.testbed import TESTBED

DELL = {
    "NIC": {"class/infiniband/qib0": "1,5,9,13,17,21,25,29,33,37", "class/net/eth0": "0,4,8,12,16,20,24,28,32,36"},
    "domains": [",".join(map(str, range(first, 40, 4))) for first in range(4)],
}
"""Four sockets, cores in turns, InfiniBand near the second one (hwloc's tests: fakepcilocalities)."""
NEC = {"NIC": {"class/net/enp96s0f0": "0-7,16-23"}, "domains": ["0-7,16-23", "8-15,24-31"]}
"""Two sockets with hardware threads, Ethernet near the first one (hwloc's tests: 32intel64-2p8co2t+8ve)."""
NEAR = {"enp96s0f0": "0-7,16-23"}
GPUS = {"0004:05:00.0": "0-87", "0035:04:00.0": "88-175"}
POWER = {
    "GPU": {f"bus/pci/devices/{bus}": cores for bus, cores in GPUS.items()},
    "domains": ["0-87", "88-175", ""],
}
"""Two sockets, GPUs near both, whose memory is a domain without cores (hwloc's tests: nvidiagpunumanodes)."""
PLAN = '{"hosts": 1, "rate": "1gbit", "slow": {}, "bytes_per_second": {}}'
VIRTUAL = {"NIC": {"class/net/ens3": "0-7"}, "domains": ["0-3", "4-7"]}


@pytest.fixture
def node(tmp_path, put):
    def write(described):
        for number, cores in enumerate(described["domains"]):
            put(f"sys/devices/system/node/node{number}/cpulist", f"{cores}\n")
        for place, cores in {**described.get("NIC", {}), **described.get("GPU", {})}.items():
            device = "" if "pci" in place else "/device"
            put(f"sys/{place}{device}/local_cpulist", f"{cores}\n")
            put(f"sys/{place}/operstate", "up\n")
            if "infiniband" in place:
                put(f"sys/{place}/ports/1/state", "4: ACTIVE\n")
            if "pci" in place:
                put(f"proc/driver/nvidia/gpus/{place.rpartition('/')[2]}/numa_status", "")
        return locality(tmp_path)

    return write


def test_places_are_those_of_the_kernel(node, tmp_path):
    assert node(DELL)["NIC"] == {"qib0": DELL["domains"][1]}
    shutil.rmtree(tmp_path / "sys/class")
    two = node({**NEC, "NIC": {"class/infiniband/mlx5_0": "0-7", "class/infiniband/mlx5_1": "8-15"}})["NIC"]
    assert two == {"mlx5_0": "0-7", "mlx5_1": "8-15"}
    assert locality(tmp_path, "mlx5_1:1")["NIC"] == {"mlx5_1": "8-15"}
    bare = locality(tmp_path / "bare")
    assert bare == {"domains": {}, "NIC": {}, "GPU": {}}
    assert core_numbers("0-2,5") == {0, 1, 2, 5}


@pytest.mark.parametrize(
    ("described", "kind", "places"),
    [
        (NEC, "NIC", NEAR),
        (POWER, "GPU", GPUS),
        (VIRTUAL, "NIC", {}),
        ({**NEC, "NIC": {**NEC["NIC"], "class/net/ens3": "0-31", "class/net/bond0": ""}}, "NIC", NEAR),
    ],
)
def test_unknown_places_are_left_out(node, described, kind, places):
    found = node(described)
    assert found[kind] == places
    assert "" not in found["domains"].values()


@pytest.mark.parametrize(
    ("described", "cores", "words"),
    [
        (NEC, [range(8, 16)], "rank 0's NIC (enp96s0f0) is on another NUMA domain than its cores (n1)"),
        (NEC, [range(8), range(8, 16)], ""),  # both domains are needed: other threads are no other cores
        (NEC, [range(4), range(8, 12)], "rank 1's NIC"),
        (NEC, [range(16, 20)], ""),
        (NEC, [range(32)], ""),  # one rank with threads on the whole node
        (NEC, [range(32), range(32)], "rank 0 is not bound: its cores are of NUMA domains 0, 1 (n1); 1 more"),
        (DELL, [[0, 4]], "rank 0's NIC (qib0)"),
        (DELL, [[1, 5]], ""),
        (POWER, [range(88, 100)], ""),
        (VIRTUAL, [range(4, 8)], ""),
    ],
)
def test_a_rank_far_from_its_nic_is_a_warning(node, described, cores, words):
    found = node(described)
    ranks = ["n1"] * len(cores)
    job = probe(ranks, cores=cores, threads=[1] * len(cores))
    judge(preflight.placed(job, {"n1": found}, {"SLURM_STEP_ID": "0"}), words, words and "--cpu-bind=ldoms")
    judge(preflight.placed(job, {"n1": found}, {TESTBED: PLAN}))
    assert preflight.placed(job, {"n1": {"domains": {}, "NIC": {}, "GPU": {}}}, {}).verdict == "unknown"


def test_the_flag_is_that_of_the_launcher(node):
    """Slurm's step has the daemons of other launchers."""
    job, found = probe(["n1"], cores=[range(8, 16)], threads=[1]), {"n1": node(NEC)}
    for variables, flag in [
        ({"SLURM_STEP_ID": "1", "OMPI_COMM_WORLD_SIZE": "8"}, "--map-by ppr:N:numa --bind-to numa"),
        ({"SLURM_STEP_ID": "1", "MPI_LOCALNRANKS": "8"}, "mpiexec -bind-to numa"),
        ({"SLURM_STEP_ID": "1", "SLURM_JOB_ID": "7"}, "--gpu-bind=closest"),
        ({"UCX_NET_DEVICES": "enp96s0f0:1"}, "unset UCX_NET_DEVICES, or name a near NIC; or bind each rank"),
    ]:
        assert flag in preflight.placed(job, found, variables).advice
