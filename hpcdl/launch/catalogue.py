"""What a suite can name, for ``hpcdl list``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import hpcdl
from hpcdl import registry

SUBJECTS: Final = (
    *("aggregation", "compression", "optim", "training", "models", "datasets", "networks", "suites"),
)


def catalogue(what: str) -> list[dict[str, Any]]:
    """The entries of one subject: ``name``, ``summary``, and what else is known about them."""
    if what == "networks":
        return _networks()
    if what == "suites":
        return _suites()
    found = []
    for name in registry.names(what):
        thing = registry.find(what, name)
        settings = {key: str(p.annotation) for key, p in registry.settings_of(thing).items()}
        entry: dict[str, Any] = {"name": name, "summary": registry.summary(thing), "settings": settings}
        if what == "aggregation":
            from hpcdl.analysis.cost import costs

            entry["costs"] = costs(thing)
        found.append(entry)
    return found


def _networks() -> list[dict[str, Any]]:
    from hpcdl.fabric.network import NETWORKS

    return [
        {
            "name": network.name,
            "summary": f"{network.link.alpha * 1e6:g} us, {1e-9 / network.link.beta:.3g} GB/s ({network.source})",
            "alpha_seconds": network.link.alpha,
            "beta_seconds_per_byte": network.link.beta,
            "gamma_seconds_per_byte": network.gamma,
            "source": network.source,
        }
        for network in NETWORKS.values()
    ]


def _suites() -> list[dict[str, Any]]:
    """Those of the folder ``suites`` here, or else of the checkout that hpcdl was installed from."""
    folders = (Path("suites"), Path(hpcdl.__file__).parent.parent / "suites")
    folder = next((folder for folder in folders if folder.is_dir()), None)
    found = []
    for path in sorted(folder.glob("*.toml")) if folder else []:
        head = tomllib.loads(path.read_text(encoding="utf-8")).get("suite", {})
        found.append({"name": path.stem, "summary": head.get("question", ""), "path": str(path)})
    return found
