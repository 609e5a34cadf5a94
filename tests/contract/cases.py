"""Cases of suites, and their programs on ranks of this process."""

from suite.conftest import CASES, text_of

from contract.sessions import silent_journal
from hpcdl import suite
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.trace.recorder import Recorder


def case_of(kind, **keys):
    """Return a case of the kind with other ``keys`` than a usual one; None removes a key."""
    table = {key: value for key, value in {**CASES[kind], **keys}.items() if value is not None}
    (only,) = suite.parse(text_of(table), "s.toml").cases
    return only


def ran(one, world=None, **options):
    """Return what the record gets from each rank of a case, and the ranks' recorders."""
    recorders = [Recorder() for _ in range(one.processes)]

    def program(comm):
        journal = silent_journal(recorders[comm.rank])
        return one.module.program(one.spec, journal, **options)(comm)

    return (world or in_process(one.processes)).run(program), recorders
