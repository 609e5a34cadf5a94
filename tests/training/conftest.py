import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Limit BLAS to one thread; these matrices are too small for more."""
    with threadpool_limits(1):
        yield
