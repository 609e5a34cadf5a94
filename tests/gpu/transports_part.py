"""Messages between ranks that share a GPU, by every transport: what arrives, and how fast beside a pinned copy."""

import importlib.util
import os
import subprocess
from pathlib import Path

KINDS = ("staged", "ipc", "device")
RANKS = (2, 4)


def transports(results, name, tiny):
    if importlib.util.find_spec("mpi4py") is None:
        results.put("transports", shown="not run: mpi4py is not installed; carry its wheel and an MPI library's")
        return
    from hpcdl.launch.mpirun import NoLauncher, launch_environment, mpirun, python_command

    try:
        mpirun()
    except NoLauncher as error:
        results.put("transports", shown=f"not run: {error}")
        return
    for kind in KINDS if name == "cupy" else ("host",):
        for ranks in RANKS[:1] if tiny else RANKS:
            title = f"{kind}, {ranks} ranks on one GPU"
            if results.left() < 20:
                results.put(title, shown="not run: no time left")
                continue
            command = python_command(ranks, [str(Path(__file__).with_name("ranks.py")), name, str(int(tiny))])
            environment = {**os.environ, **launch_environment(), "HPCDL_TRANSPORT": kind}
            if kind == "host":
                environment.pop("HPCDL_TRANSPORT")
            try:
                done = subprocess.run(
                    command,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=min(40, results.left()),
                    check=False,
                )
            except subprocess.TimeoutExpired:
                put(results, title, kind, None, "no answer")
                continue
            print(done.stdout, done.stderr)
            answer = [line for line in done.stdout.splitlines() if line.startswith("answer ")]
            put(
                results,
                title,
                kind,
                answer[-1][7:] if answer and not done.returncode else None,
                done.stderr[-200:],
            )


def put(results, title, kind, answer, why):
    """A library that is not made for device pointers may crash: that is an answer, not a failure."""
    if answer is not None:
        results.put(title, ok=True, shown=answer)
    elif kind == "device":
        results.put(title, shown=f"the MPI library does not take device pointers ({why.strip()[-80:]!r})")
    else:
        results.put(title, ok=False, error=why)
