from cases.conftest import one_thread  # noqa: F401
