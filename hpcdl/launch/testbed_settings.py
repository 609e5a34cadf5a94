"""Environment variables that configure MPI launchers for emulated hosts and describe the testbed to runs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from hpcdl.registry import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TESTBED: Final = "HPCDL_TESTBED"
"""Description of the testbed as JSON; set in a testbed."""

INTERFACE: Final = "eth0"
"""The network interface of every emulated host."""


class TestbedError(Exception):
    """The environment's description of a testbed is invalid; one line."""


def emulated(environment: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """Return the :class:`hpcdl.launch.testbed.Plan` of this process's testbed; None outside a testbed.

    Raises TestbedError if the variable is invalid.
    """
    text = environment.get(TESTBED)
    if not text:
        return None
    try:
        plan = json.loads(text)
    except (ValueError, RecursionError):
        plan = None
    if not isinstance(plan, dict) or any(not isinstance(plan.get(key), kind) for key, kind in _PLAN.items()):
        raise TestbedError(
            f"{TESTBED}: {shortened(text)} describes no testbed; hpcdl testbed sets this variable: unset it"
        )
    return plan


_PLAN: Final = {"hosts": int, "rate": str, "slow": dict, "bytes_per_second": dict}


def launcher_settings(agent: Path, mpich_hosts: Path, openmpi_hosts: Path) -> dict[str, str]:
    """Return variables that make any ``mpirun`` start ranks on the emulated hosts, with either MPI library.

    Ranks are placed on hosts in turn; all messages use TCP on the emulated links. ``agent`` replaces ssh; the
    files list the hosts in each library's format. Sources: parameter lists of Hydra and PRRTE.
    """
    hydra = {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "HYDRA_HOST_FILE": str(mpich_hosts),
        "HYDRA_IFACE": INTERFACE,
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": INTERFACE,
        # long messages in pieces, so that answers of the other direction pass between them
        "UCX_RNDV_SCHEME": "am",
        "MPIR_CVAR_POLLS_BEFORE_YIELD": "10",  # ranks of all hosts share the machine's cores
        "MPIR_CVAR_NOLOCAL": "1",  # ranks on one emulated host use the network stack too
    }
    prrte = {
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": str(agent),
        "PRTE_MCA_prte_default_hostfile": str(openmpi_hosts),
        "PRTE_MCA_prte_if_include": INTERFACE,
        "PRTE_MCA_rmaps_default_mapping_policy": "node:oversubscribe",
        # with binding, the first rank of every host would use core 0
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": INTERFACE,
        # pieces as with UCX: all default flags except put, which sends a message as one piece; shorter pieces
        "OMPI_MCA_btl_tcp_flags": "send,inplace,need-ack,need-csum,hetero-rdma",
        "OMPI_MCA_btl_tcp_max_send_size": "65536",
        # send messages of 64 KiB and a header without a handshake, whose answer each round of a ring would wait
        # for
        "OMPI_MCA_btl_tcp_eager_limit": "131072",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks of all hosts share the machine's cores
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return hydra | prrte
