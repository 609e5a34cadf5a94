"""Kernels are compiled before a case is timed; the user is told why nothing happens."""

from threading import Event
from types import SimpleNamespace

from hpcdl.run import job as jobs
from hpcdl.run.job import Job


def test_a_compilation_that_takes_long_is_announced_while_it_lasts(monkeypatch):
    shown, lines = Event(), []

    def show(line):
        lines.append(line)
        shown.set()

    compiler = SimpleNamespace(prepare=lambda _: shown.wait(60), announcement=lambda dtype: f"compiling {dtype}")
    monkeypatch.setattr(jobs, "backend", lambda _name: compiler)
    monkeypatch.setattr(jobs, "LOADING_SECONDS", 0.01)
    job = Job.__new__(Job)
    job._prepared, job._leads_node, job.world = set(), True, SimpleNamespace(sleeping_barrier=lambda: None)
    settings = {"backend": SimpleNamespace(name="numba", settings={}), "dtype": "float32"}
    case = SimpleNamespace(setting=settings.get, spec=SimpleNamespace(threads=1))
    for _ in range(2):  # the second case has the same kernels
        job.prepare(case, show)
    assert lines == ["compiling float32"]
