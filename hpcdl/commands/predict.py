"""``hpcdl predict``: times on another network, or on more ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.exit_codes import OK

if TYPE_CHECKING:
    import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "predict",
        help="times on another network, or on more ranks",
        description="Simulate the collectives, exchanges and training steps of a suite or a run on a network: a "
        "preset (hpcdl list networks), a file that --save wrote, or a run, to whose measured times a network is "
        "fitted.",
    )
    parser.add_argument("what", type=Path, metavar="SUITE.toml|RUN")
    parser.add_argument("--network", required=True, metavar="NAME|RUN|FILE.toml")
    parser.add_argument("--ranks", default="", metavar="N,...", help="ascending (default: each case's own)")
    parser.add_argument("--ranks-per-host", type=int, metavar="N", help="(default: one, or the measured run's)")
    parser.add_argument("--case", metavar="GLOB", help="only cases whose name matches")
    parser.add_argument("--save", type=Path, metavar="FILE.toml", help="write the network to a file")
    parser.add_argument("--json", action="store_true", help="one JSON document with a record per case")
    parser.set_defaults(command=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from hpcdl import prediction
    from hpcdl.analysis import network_file
    from hpcdl.report import predictions
    from hpcdl.report.summary import plain
    from hpcdl.suite import UsageError

    found = prediction.predict(
        options.what,
        options.network,
        prediction.ascending(options.ranks),
        glob=options.case,
        ranks_per_host=options.ranks_per_host,
    )
    if options.save:
        try:
            origin = found.fitted.origin if found.fitted else {}
            options.save.write_text(network_file.written(found.network, origin), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--save {options.save}: {error.strerror}") from None
    page = predictions.document(found, f"hpcdl: {options.what} on {found.network.name}")
    print(predictions.render(found) if options.json else plain([page]), end="")
    return OK
