"""The fabric's contract, in one process and simulated; over MPI in tests/mpi."""

from contract.fabric import *  # noqa: F403
from contract.fabric_communicators import *  # noqa: F403
from contract.fabric_programs import *  # noqa: F403
