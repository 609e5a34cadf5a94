"""``hpcdl run`` as one rank of a job."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.commands.parts.folder import folder_of, load_suite, writable
from hpcdl.exit_codes import FAILED, MISMATCH, OK, USAGE

if TYPE_CHECKING:
    import argparse

    from hpcdl.fabric.mpi.interpreter import Mpi


def in_job(options: argparse.Namespace) -> int:
    """Run the suite as one rank of a job; return the exit code."""
    from hpcdl.launch.library import abort, abort_on_error, incompatibility, is_first, load, mismatch, start
    from hpcdl.launch.rank_processes import announce
    from hpcdl.launch.status_files import STATUS, write_status
    from hpcdl.run.failed_cases import CaseFailedError

    library = load()
    complaint = incompatibility(os.environ, library)
    if not complaint:
        start()
        with abort_on_error():
            from hpcdl.fabric.mpi.fault_tolerance import depart
            from hpcdl.fabric.mpi.interpreter import Mpi

            mpi = Mpi()
            options.ranks = mpi.comm.size
            announce(mpi.comm.rank)
            complaint = mismatch(mpi.comm.size, os.environ, library.name)
    if complaint:
        if not is_first(os.environ):
            return OK  # an error code of this rank could end the first before it prints the message
        print(f"hpcdl: {complaint}", file=sys.stderr)
        return write_status(MISMATCH, 0)
    with abort_on_error(), ExitStack() as held:
        try:
            code = _on_all(options, mpi, held)
        except CaseFailedError as error:
            if STATUS not in os.environ:  # otherwise hpcdl run prints the error and starts the ranks again
                print(
                    f"hpcdl: {error}\nhpcdl: continue with the other cases by --resume",
                    file=sys.stderr,
                )
            abort(FAILED)  # the other ranks wait for this one
    return depart(mpi.comm, write_status(code, mpi.comm.rank))


def _on_all(options: argparse.Namespace, mpi: Mpi, held: ExitStack) -> int:
    """Read and check the suite on rank 0, broadcast it, and run it on all ranks; return the exit code."""
    from hpcdl import suite
    from hpcdl.run import case_loop as runner
    from hpcdl.run.run_folder import claimed

    first, library = mpi.comm.rank == 0, mpi.comm.library
    text, complaint, folder = "", "", Path()
    if first:
        try:
            chosen = load_suite(options)
            text = chosen.text
            folder = writable(folder_of(options, chosen), chosen.name, resume=options.resume)
            held.enter_context(claimed(folder))
        except suite.UsageError as error:
            complaint = str(error)
    text, complaint = library.bcast((text, complaint))
    if not complaint:
        try:
            chosen = suite.parse(text, str(options.suite), options.overrides, options.case, ranks=mpi.comm.size)
        except suite.UsageError as error:
            complaint = f"rank {mpi.comm.rank}: {error}"  # for example a file that only rank 0 can read
        complaint = next(filter(None, library.allgather(complaint)), "")
    if not complaint:
        try:
            return runner.run(
                chosen,
                folder,
                mpi,
                resume=options.resume,
                show=options.show,
                case_timeout=options.case_timeout,
                mix_environments=options.mix_environments,
            )
        except suite.UsageError as error:
            complaint = str(error)
    if first:
        print(f"hpcdl: {complaint}", file=sys.stderr)
    return USAGE
