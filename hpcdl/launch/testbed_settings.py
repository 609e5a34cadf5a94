"""What tells MPI launchers, and the record of a run, that the hosts are emulated."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TESTBED: Final = "HPCDL_TESTBED"
"""Set in a testbed, to what it emulates, as JSON."""

INTERFACE: Final = "eth0"
"""The network interface of every emulated host."""


def emulated(environment: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """What :class:`hpcdl.launch.testbed.Plan` says of the testbed this process is in; None outside of one."""
    told = environment.get(TESTBED)
    return dict(json.loads(told)) if told else None


def launcher_settings(agent: Path, mpich_hosts: Path, openmpi_hosts: Path) -> dict[str, str]:
    """Variables that make any ``mpirun`` go to the emulated hosts, whichever library it belongs to.

    One rank a host in turn, messages over TCP on the emulated link and nowhere else. ``agent`` stands for ssh,
    the files name the hosts in each library's manner. Sources: Hydra's and PRRTE's lists of parameters.
    """
    hydra = {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "HYDRA_HOST_FILE": str(mpich_hosts),
        "HYDRA_IFACE": INTERFACE,
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": INTERFACE,
        # long messages in pieces, between which answers of the other direction find a gap
        "UCX_RNDV_SCHEME": "am",
        "MPIR_CVAR_POLLS_BEFORE_YIELD": "10",  # ranks of all hosts share the machine's cores
        "MPIR_CVAR_NOLOCAL": "1",  # ranks that share an emulated host talk through its link's stack as well
    }
    prrte = {
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": str(agent),
        "PRTE_MCA_prte_default_hostfile": str(openmpi_hosts),
        "PRTE_MCA_prte_if_include": INTERFACE,
        "PRTE_MCA_rmaps_default_mapping_policy": "node:oversubscribe",
        # every host has all the machine's cores for its own: bound, the first ranks of all would share core 0
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": INTERFACE,
        # the same: all that is usual but put, which makes one piece of a message, and shorter pieces
        "OMPI_MCA_btl_tcp_flags": "send,inplace,need-ack,need-csum,hetero-rdma",
        "OMPI_MCA_btl_tcp_max_send_size": "65536",
        # a ring's 64 KiB, and a header, are sent without asking: each round would wait for an answer
        "OMPI_MCA_btl_tcp_eager_limit": "131072",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks of all hosts share the machine's cores
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return hydra | prrte
