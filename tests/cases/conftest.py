import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Limit matrix products to one thread: small ones are not worth a second."""
    with threadpool_limits(1):
        yield
