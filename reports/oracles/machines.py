"""Fit networks to the collectives that others measured on four real clusters.

    python reports/oracles/machines.py [NAME...]     write hpcdl/networks/NAME.toml

A network is fitted to the fewest nodes of its machine, one rank per node, in host memory. Larger numbers of nodes
are held out, and no choice here depends on them. Equal tables give equal files.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.analysis.network.clusters import Measurement, measurements
from hpcdl.analysis.run.record import Record
from hpcdl.fabric.network import SHARED_MEMORY
from hpcdl.prediction.fitting import Fit, fit, summary
from hpcdl.prediction.network_file import NetworkEstimate, format_network
from hpcdl.prediction.programs import MeasuredProgram, program_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NETWORKS = Path(__file__).resolve().parents[2] / "hpcdl" / "networks"
NODES = {"leonardo": (512,), "lumi": (8, 16), "marenostrum5": (32, 60), "fugaku": (8, 64)}
"""Numbers of nodes of the fit."""
EAGER_BYTES = (0, *(1 << power for power in range(9, 18)))
"""Numbers of early bytes of which the fit keeps the one with the least errors."""
NOT_IN_FIT = {"circulant", "bruck", "direct", "parameter_server"}
"""Schemes whose time is more than that of single messages: copies in memory, and messages that share a port."""
LINKS = {
    "leonardo": "HDR100 InfiniBand, two rails of four for long messages",
    "lumi": "Slingshot 11, one of four ports",
    "marenostrum5": "NDR200 InfiniBand, one rail of four",
    "fugaku": "Tofu D, as MPI uses it",
}


def usable(machine: str) -> Iterable[Measurement]:
    """Yield the times of schemes with one rank per node, in host memory, with the machine's usual settings."""
    for each in measurements():
        usual = each.memory == "host" and each.ranks_per_node == 1 and "rail" not in each.notes
        if each.machine == machine and usual and each.scheme not in {None, "native"}:
            yield each


def programs(measured: Iterable[Measurement]) -> list[MeasuredProgram]:
    """Return the programs of measurements, without those of parts that are not whole elements."""
    made = []
    for each in measured:
        keys = {"collective": each.collective, "aggregation": each.scheme, "dtype": "float32"}
        keys |= {"ranks": each.ranks, "message_bytes": each.message_bytes}
        record = Record.of({"kind": "collective", **keys, "settings": json.dumps(keys)})
        record.time_p50_seconds = each.seconds
        if each.collective != "all_to_all" or not each.message_bytes // 4 % each.ranks:
            made.append(MeasuredProgram(record, program_of(record, each.ranks)))
    return made


def absolute_error(found: Fit) -> float:
    """Return the mean of the absolute logarithms of predicted / measured time."""
    return float(np.abs(np.log1p(found.errors)).mean())


def best_fit(fewest: Sequence[MeasuredProgram]) -> Fit:
    """Return the fit with the best number of early bytes."""
    hosts = range(max(program.ranks for program in fewest))
    return min((fit(fewest, hosts, size) for size in EAGER_BYTES), key=absolute_error)


def estimate(machine: str) -> NetworkEstimate:
    """Return the network of a machine, with its errors."""
    measured = [*usable(machine)]
    chosen = [each for each in measured if each.nodes in NODES[machine] and each.scheme not in NOT_IN_FIT]
    found = best_fit(programs(chosen))
    nodes = " and ".join(map(str, NODES[machine]))
    library = chosen[0].library
    errors = {
        "fitted": summary(found.errors),
        "scheme_and_ranks_left_out": summary(*found.left_out(lambda each: (each.scheme, each.ranks))),
        "collective_left_out": summary(*found.left_out(lambda each: each.record.collective)),
    }
    notes = [
        f"Rests on {len(chosen)} times of collectives on {nodes} nodes, one rank a node, host memory, {library}.",
        "Measured by others (PICO) while other jobs ran.",
        f"Left out of the fit: {', '.join(sorted(NOT_IN_FIT))}, whose times have copies or shared ports.",
        "No topology: messages queue only at the ports of nodes.",
    ]
    certainty = replace(found.certainty, errors=errors, notes=notes)
    months = sorted({each.job[:7].replace("_", "-") for each in chosen})
    dates = months[0] if len(months) == 1 else f"{months[0]} to {months[-1]}"
    source = f"{LINKS[machine]}; fitted to {len(chosen)} times on {nodes} nodes, {library}, {dates}"
    network = replace(found.network, name=machine, source=source, hosts=(), inside=SHARED_MEMORY)
    origin = {"machine": machine, "date": dates, "library": library, "times": len(chosen)}
    origin |= {"source": "github.com/HLC-Lab/pico", "most_ranks": max(NODES[machine])}
    return NetworkEstimate(network, max(NODES[machine]), certainty, origin)


def main(names: Sequence[str]) -> None:
    """Write the files of the machines named, or of all."""
    for name in names or NODES:
        (NETWORKS / f"{name}.toml").write_text(format_network(estimate(name)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
