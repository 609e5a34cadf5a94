"""Fixtures; tests with ``kernels`` run once per available backend."""

import pytest

from hpcdl.nn.backend import backend, backends


def usable():
    return [name for name in ("numpy", "numba") if name in backends()]


@pytest.fixture(params=usable())
def kernels(request):
    try:
        return backend(request.param)
    except ValueError as error:
        pytest.skip(str(error))
