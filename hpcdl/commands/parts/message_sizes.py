"""Options of commands that measure a collective over message sizes, and the suite that they describe."""

import argparse
import json
from typing import Final

from hpcdl.commands.parts.parser import Arguments, path, whole_number
from hpcdl.exit_codes import UsageError

MIN_FACTOR: Final = 2


def declare(parser: Arguments, metavar: str = "COLLECTIVE") -> None:
    """Declare the collective, sizes, schemes, ranks and run folder."""
    names = "allreduce (default), reduce_scatter, allgather, all_to_all, broadcast or reduce"
    parser.option(f"collective {metavar}", names, nargs="?", default="allreduce")
    parser.option("-b SIZE", "smallest size (default: 8)", dest="least", default="8")
    parser.option("-e SIZE", "largest size (default: 4M)", dest="most", default="4M")
    effect = "factor between sizes (default: %(default)s)"
    parser.option("-f N", effect, dest="factor", type=whole_number, default=2)
    effect = "schemes, of `hpcdl list aggregation` (default: %(default)s)"
    parser.option("-a --aggregation NAMES", effect, default="native,ring")
    parser.option("-n --ranks RANKS", "ranks (default: one per core)", type=whole_number)
    parser.option("-r --repetitions N", "timed repetitions (default: %(default)s)", type=whole_number, default=20)
    effect = "repetitions before the timed ones (default: %(default)s)"
    parser.option("-w --warmup N", effect, type=whole_number, default=5)
    parser.option("-d --dtype TYPE", "float32 (default) or float64", default="float32")
    parser.option("-o DIR", "keep the run here (default: runs/bench-TIME)", dest="folder", type=path)
    parser.option("--resume", "measure the rows that the run in DIR lacks")


def suite_text(options: argparse.Namespace, name: str) -> str:
    """Return the text of a suite of one case per size and scheme, in the order of the rows."""
    keys = {
        "kind": "collective",
        "collective": options.collective,
        "message_bytes": _sizes(options),
        "aggregation": options.aggregation.split(","),
        "ranks": options.ranks or "all",
        "repetitions": options.repetitions,
        "warmup": options.warmup,
        "dtype": options.dtype,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join([f'[suite]\nname = "{name}"\n[[case]]', *lines, ""])


def _sizes(options: argparse.Namespace) -> list[int]:
    from hpcdl.cases.keys.key import size

    ends = []
    for name, text in (("-b", options.least), ("-e", options.most)):
        end = int(text) if text.isdecimal() and len(text) < 16 else size(text)
        if end is None:
            raise UsageError(f"{name} {text}: must be a size in bytes, such as 8, 64K or 128M")
        ends.append(end)
    least, most = ends
    if options.factor < MIN_FACTOR or not 1 <= least <= most:
        words = f"-b {options.least} -e {options.most} -f {options.factor}"
        raise UsageError(f"{words}: sizes grow from at least 1 by a factor of at least {MIN_FACTOR}")
    sizes = [least]
    while sizes[-1] * options.factor <= most:
        sizes.append(sizes[-1] * options.factor)
    return sizes
