"""Options of commands that measure a collective over message sizes, and the suite that they describe."""

import argparse
import json
from typing import Final

from hpcdl.commands.parts.parser import path, whole_number
from hpcdl.exit_codes import UsageError

MIN_FACTOR: Final = 2


def declare(parser: argparse.ArgumentParser, metavar: str = "COLLECTIVE") -> None:
    """Declare the collective, sizes, schemes, ranks and run folder."""
    parser.add_argument(
        "collective",
        nargs="?",
        default="allreduce",
        metavar=metavar,
        help="allreduce (default), reduce_scatter, allgather, all_to_all, broadcast or reduce",
    )
    parser.add_argument("-b", dest="least", default="8", metavar="SIZE", help="smallest size (default: 8)")
    parser.add_argument("-e", dest="most", default="4M", metavar="SIZE", help="largest size (default: 4M)")
    parser.add_argument(
        "-f", dest="factor", type=whole_number, default=2, metavar="N", help="between sizes (default: %(default)s)"
    )
    parser.add_argument(
        "-a",
        "--aggregation",
        default="native,ring",
        metavar="NAMES",
        help="schemes, of `hpcdl list aggregation` (default: %(default)s)",
    )
    parser.add_argument("-n", "--ranks", type=whole_number, metavar="RANKS", help="ranks (default: one per core)")
    parser.add_argument(
        "-r", "--repetitions", type=whole_number, default=20, metavar="N", help="(default: %(default)s)"
    )
    parser.add_argument("-d", "--dtype", default="float32", metavar="TYPE", help="float32 (default) or float64")
    parser.add_argument(
        "-o", dest="folder", type=path, metavar="DIR", help="keep the run here (default: runs/bench-TIME)"
    )
    parser.add_argument("--resume", action="store_true", help="measure the rows that the run in DIR lacks")


def suite_text(options: argparse.Namespace, name: str) -> str:
    """Return the text of a suite of one case per size and scheme, in the order of the rows."""
    keys = {
        "kind": "collective",
        "collective": options.collective,
        "message_bytes": _sizes(options),
        "aggregation": options.aggregation.split(","),
        "ranks": options.ranks or "all",
        "repetitions": options.repetitions,
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
        given = f"-b {options.least} -e {options.most} -f {options.factor}"
        raise UsageError(f"{given}: sizes grow from at least 1 by a factor of at least {MIN_FACTOR}")
    sizes = [least]
    while sizes[-1] * options.factor <= most:
        sizes.append(sizes[-1] * options.factor)
    return sizes
