import pytest
from threadpoolctl import threadpool_limits

pytest.register_assert_rewrite("contract")


@pytest.fixture(autouse=True)
def one_thread():
    """Matrices this small are not worth a second one."""
    with threadpool_limits(1):
        yield
