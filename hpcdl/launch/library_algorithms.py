"""Algorithms of the MPI library's collectives: variables that force one, and rules that choose one by size.

Rules are for one number of ranks: a library applies them, as it does the variables, to sub-communicators too.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hpcdl.launch.machine import loaded_libraries
from hpcdl.launch.mpirun import mpirun
from hpcdl.launch.process import load

FUNCTIONS: Final[dict[str, tuple[str, int, tuple[str, ...]]]] = {
    "allreduce": ("allreduce", 2, ("nb", "recursive_doubling", "reduce_scatter_allgather", "ring")),
    "allgather": ("allgatherv", 1, ("nb", "brucks", "ring")),
    "all_to_all": ("alltoall", 3, ()),
    "broadcast": ("bcast", 7, ("nb", "binomial", "scatter_ring_allgather")),
    "reduce": ("reduce", 11, ("nb", "binomial", "reduce_scatter_gather")),
    "reduce_scatter": ("reduce_scatter", 12, ("nb", "pairwise", "recursive_halving")),
}
"""By collective: function of MPI, its number in Open MPI's rules, MPICH's algorithms for any number of ranks."""

Rules = Mapping[str, Sequence[tuple[int, str]]]
"""By collective: bytes from which on an algorithm is used, first 0; "": the library's choice."""


def algorithms(collective: str) -> dict[str, dict[str, str]]:
    """Return the variables that force each algorithm of a collective; empty if the library is not known.

    Empty too for an alltoallv, whose size on all ranks no library's rule knows.
    """
    if collective not in FUNCTIONS:
        return {}
    function, _, of_mpich = FUNCTIONS[collective]
    if load().name == "MPICH":
        forced = f"MPIR_CVAR_{function.upper()}_INTRA_ALGORITHM"
        return {name: {forced: name} for name in of_mpich}
    dynamic, forced = "OMPI_MCA_coll_tuned_use_dynamic_rules", f"OMPI_MCA_coll_tuned_{function}_algorithm"
    return {name: {dynamic: "1", forced: number} for name, number in _numbers(function).items()}


def write_rules(folder: Path, ranks: int, rules: Rules) -> str:
    """Write the library's file of rules for jobs of ``ranks``; return the variables that make it read the file."""
    if load().name == "MPICH":
        file = folder.absolute() / f"mpich-{ranks}-ranks.json"
        file.write_text(json.dumps(_json(rules), indent=1) + "\n", encoding="utf-8")
        return f"MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE={shlex.quote(str(file))}"
    file = folder.absolute() / f"openmpi-{ranks}-ranks.conf"
    lines = [f"{len(rules)} # functions; jobs of {ranks} ranks"]
    for collective, rows in rules.items():
        function, number, _ = FUNCTIONS[collective]
        numbers = {"": "0", **_numbers(function)}
        parts = ranks if collective == "all_to_all" else 1  # its rules count the bytes for one rank
        lines += [f"{number} # {function}", "1 # communicator size", "1 # and more ranks", f"{len(rows)} # sizes"]
        lines += [f"{size // parts} {numbers[name]} 0 0 # {name}" for size, name in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    variable = f"OMPI_MCA_coll_tuned_dynamic_rules_filename={shlex.quote(str(file))}"
    return f"OMPI_MCA_coll_tuned_use_dynamic_rules=1 {variable}"


def _json(rules: Rules) -> dict[str, Any]:
    """Return MPICH's built-in table with the rules in it, because MPICH ends if a table lacks a function."""
    libraries = loaded_libraries()
    library = next(file for file in libraries["mpi"] if Path(file).name.startswith("libmpi."))  # type: ignore[index]
    tables = re.findall(rb'\{"collective=[^\0]*\}(?=\0)', Path(library).read_bytes())
    table: dict[str, Any] = json.loads(next(text for text in tables if b"algorithm=MPIR_Bcast_" in text))
    for collective, rows in rules.items():
        function, *_ = FUNCTIONS[collective]
        default = table[f"collective={function}"]["comm_type=intra"]
        size = "total" if function in {"allgatherv", "reduce_scatter"} else "avg"
        chosen = {}
        for (_, name), end in zip(rows, [*(f"<{begin}" for begin, _ in rows[1:]), "=any"], strict=True):
            place = "allcomm" if name == "nb" else "intra"
            rule: dict[str, Any] = {f"algorithm=MPIR_{function.capitalize()}_{place}_{name}": {}}
            if function in {"allreduce", "reduce"}:
                rule = {"count<pow2": default, "count=any": rule}
                rule = {"is_op_built_in=yes": rule, "is_op_built_in=no": default}
            if "reduce" in function:
                rule = {"is_commutative=yes": rule, "is_commutative=no": default}
            chosen[f"{size}_msg_size{end}"] = rule if name else default
        table[f"collective={function}"]["comm_type=intra"] = chosen
    return table


def _numbers(function: str) -> dict[str, str]:
    """Return the numbers of Open MPI's algorithms of a function, by name; empty without its ``ompi_info``."""
    tool = mpirun().with_name("ompi_info")
    command = [str(tool), "--param", "coll", "tuned", "--level", "9", "--parsable"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout if tool.exists() else ""
    pairs = re.findall(rf":coll_tuned_{function}_algorithm:enumerator:value:(\d+):(\S+)", listed)
    return {name: number for number, name in pairs if name not in {"ignore", "two_proc"}}
