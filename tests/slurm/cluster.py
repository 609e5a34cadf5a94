"""A throw-away Slurm of several virtual nodes on this machine, from Debian's packages; needs root."""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

PACKAGES = "slurm-wlm slurmctld slurmd munge slurm-wlm-basic-plugins libpmix2"
NODES = 4
CPUS = 8
START = 30
"""Seconds for the daemons to come up."""

CONF = """
ClusterName=virtual
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={base}/munge/socket,cred_expire=5
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool/%n
SlurmctldPidFile={base}/pid/slurmctld
SlurmdPidFile={base}/pid/slurmd-%n
SlurmctldLogFile={base}/log/slurmctld
SlurmdLogFile={base}/log/slurmd-%n
TmpFS={base}/tmp/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=2
SlurmdParameters=config_overrides
TopologyPlugin=topology/tree
MpiDefault=none
ReturnToService=2
KillWait=5
MinJobAge=900
OverTimeLimit=0
GresTypes=gpu
NodeName=n[1-{nodes}] Gres=gpu:2 NodeHostName={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} RealMemory=1000
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
GPUS = """
NodeName=n[1-{nodes}] Name=gpu File={base}/gpu[0-1]
"""
"""Empty files in the place of devices."""
TOPOLOGY = """
SwitchName=leaf1 Nodes=n[1-2]
SwitchName=leaf2 Nodes=n[3-4]
SwitchName=spine Switches=leaf[1-2]
"""


def lacking():
    """Return why no Slurm can be started here, None if it can."""
    if os.geteuid() != 0:
        return "needs root"
    programs = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "sinfo", "squeue", "scontrol", "scancel")
    absent = [name for name in programs if shutil.which(name, path=_path()) is None]
    return f"{', '.join(absent)} not found: apt-get install {PACKAGES}" if absent else None


def _path():
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _free_ports(count):
    """Return the first of ``count`` adjacent free ports."""
    for first in range(27000, 32000, 100):
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
    raise RuntimeError("no free ports")


class Cluster:
    """A running Slurm; commands find it through :attr:`environment`."""

    def __init__(self, base: Path):
        self.base = base
        self.environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(base / "slurm.conf")}
        for name in [key for key in self.environment if key.startswith("SLURM_") and key != "SLURM_CONF"]:
            del self.environment[name]
        of_nodes = (f"{kind}/n{i + 1}" for kind in ("tmp", "spool") for i in range(NODES))
        for name in ("state", "log", "pid", "munge", *of_nodes):
            (base / name).mkdir(parents=True)
        (base / "munge").chmod(0o755)
        port = _free_ports(NODES + 1)
        host = socket.gethostname().partition(".")[0]
        ports = {"port": port, "first": port + 1, "last": port + NODES}
        (base / "slurm.conf").write_text(CONF.format(base=base, host=host, nodes=NODES, cpus=CPUS, **ports))
        (base / "gres.conf").write_text(GPUS.format(nodes=NODES, base=base))
        for number in range(2):
            (base / f"gpu{number}").touch()
        (base / "topology.conf").write_text(TOPOLOGY)
        key = base / "munge/key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)

    def start(self):
        """Start the daemons, and wait until all nodes are idle."""
        munge = self.base / "munge"
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self("munged", "--force", *(f"--{option}={munge / name}" for option, name in files.items()))
        self("slurmctld", "-c")
        for number in range(NODES):
            self("slurmd", "-N", f"n{number + 1}", "-c")
        deadline = time.monotonic() + START
        while self("sinfo", "-h", "-N", "-t", "idle").stdout.count("\n") < NODES:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Slurm's nodes are not idle after {START} s: {self('sinfo', '-Nl').stdout}")
            time.sleep(0.2)

    def stop(self):
        """End all jobs and daemons."""
        with suppress(subprocess.SubprocessError):
            self("scancel", "-u", "root")
        nodes = sorted((self.base / "pid").glob("slurmd-*"))
        for file in [*nodes, self.base / "pid/slurmctld", self.base / "munge/pid"]:
            with suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGTERM)

    def __call__(self, *command, cwd=None, **variables):
        """Run a command with this Slurm."""
        return subprocess.run(
            [*map(str, command)],
            env={**self.environment, **variables},
            cwd=cwd,
            check=True,
            timeout=START,
            capture_output=True,
            text=True,
        )
