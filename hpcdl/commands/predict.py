"""``hpcdl predict``: predict times on another network, or on more ranks."""

import argparse
import sys
from time import monotonic
from typing import Final

from hpcdl.commands.parts.options import (
    Arguments,
    Command,
    case_patterns,
    path,
    suite_argument,
    whole_number,
    write_output,
)
from hpcdl.exit_codes import OK, UsageError


def arguments(parser: Arguments) -> None:
    suite_argument(parser, "source SUITE|RUN")
    parser.option("--network NAME|RUN|FILE.toml", required=True)
    parser.option("--ranks N,...", "ascending (default: those of the cases)", default="")
    parser.option("--ranks-per-host N", "ranks per host (default: one, or as in the run)", type=whole_number)
    case_patterns(parser, "select cases by name; others are not checked")
    effect = "with trainings: the cheapest split of each layer, and the step time of every mesh of the ranks"
    parser.option("--parallelism", effect)
    effect = "standard deviation / mean of a rank's compute time in a step; 0: none (default: as in the trace)"
    parser.option("--jitter CV", effect, type=_deviation)
    parser.option("--save FILE.toml", "write the network to a file", type=path)
    parser.option("--json", "one JSON document with a record per case")
    parser.log_option()


def _deviation(text: str) -> float:
    if 0 <= (deviation := float(text)) <= 10:  # the limit of a case's key ``jitter``
        return deviation
    raise argparse.ArgumentTypeError(f"{text} is not between 0 and 10")


def execute(options: argparse.Namespace) -> int:
    from hpcdl.prediction import network_file
    from hpcdl.prediction import predict as prediction
    from hpcdl.report.formats.writers import coloured, plain
    from hpcdl.report.sections import predictions
    from hpcdl.trace.recorder import analysed

    begin = monotonic()

    def show(line: str) -> None:
        if monotonic() > begin + 10:  # each simulation is announced then
            print(f"hpcdl: {line} ...", file=sys.stderr, flush=True)

    with analysed(options.source):
        predicted = prediction.predict(
            options.source,
            options.network,
            prediction.ascending(options.ranks),
            globs=options.case,
            ranks_per_host=options.ranks_per_host,
            meshes=options.parallelism,
            show=show,
            jitter=options.jitter,
            facts=options.log,
        )
    if options.save:
        if predicted.estimate.network.topology is not None and not predicted.estimate.topology:
            raise UsageError(
                f"--save: a file cannot hold the topology of {options.network}; give its name instead"
            )
        write_output("--save", options.save, network_file.format_network(predicted.estimate))
    page = predictions.document(predicted, str(options.source))
    print(predictions.render(predicted) if options.json else coloured(plain([page])), end="")
    return OK


COMMAND: Final = Command(
    30,
    "predict times on another network, or on more ranks",
    "Simulate the collectives, exchanges and training steps of a suite or a run on a network. The network is "
    "a preset (hpcdl list networks), a file from --save, or fitted to the measured times of a run.",
    "hpcdl predict suites/near-linear.toml --network ethernet-10g --ranks 2,4,8",
)
