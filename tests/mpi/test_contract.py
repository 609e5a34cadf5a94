"""The fabric's contract over MPI: the same tests as in one process (tests/fabric)."""

import pytest
from contract.fabric import *  # noqa: F403
from contract.fabric_communicators import *  # noqa: F403
from contract.fabric_programs import *  # noqa: F403

pytestmark = pytest.mark.mpi
