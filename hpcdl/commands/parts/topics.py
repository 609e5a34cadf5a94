"""Pages of documentation: their files, and the words that lead to them."""

from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[2]
BESIDE_THEIR_SUBJECT: Final = {"suites": "suites", "columns": "report", "hdf5": "trace"}
"""Folders whose README.md is a page: keys of suites, columns of CSV and JSON, the file of a run."""
SYNONYMS: Final = {
    "batch": "slurm pbs lsf account partition qos gres constraint reservation queue srun mpirun mpiexec",
    "cluster": "drain cron admin mail grafana prometheus spack easybuild apptainer",
    "collectives": "osu nccl rccl imb horovod bench tune allreduce alltoall latency bandwidth",
    "gpu": "gpus cuda cupy nvidia rocm",
    "nightly": "history compare regression reframe",
    "predict": "network networks simulate loggp",
    "running": "run report page install",
    "models": "model layers pytorch",
    "traces": "trace timeline perfetto chakra",
}
"""Words that no page has as its name, by the page that has them."""


def pages() -> dict[str, Path]:
    """Return the file of each topic."""
    of_docs = {file.stem: file for file in sorted((PACKAGE / "docs").glob("*.md"))}
    return of_docs | {topic: PACKAGE / folder / "README.md" for topic, folder in BESIDE_THEIR_SUBJECT.items()}


def topic_of(word: str) -> str:
    """Return the topic that ``word`` names, or leads to as a synonym; empty if none."""
    name = word.casefold().lstrip("-")
    named = (topic for topic, words in SYNONYMS.items() if name in words.split())
    return name if name in pages() else next(named, "")
