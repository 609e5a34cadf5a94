"""The fabric's contract over MPI: the tests that hold in one process (tests/fabric) hold here."""

import pytest
from contract.fabric import *  # noqa: F403

pytestmark = pytest.mark.mpi
