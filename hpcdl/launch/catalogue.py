"""What a suite can name, for ``hpcdl list``."""

from __future__ import annotations

import inspect
import json
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import hpcdl
from hpcdl import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SUBJECTS: Final = (
    *("aggregation", "compression", "optim", "training", "models", "datasets", "networks", "suites"),
)

USUAL_BATCH: Final = 256


def catalogue(what: str, batches: Sequence[int] = (USUAL_BATCH,)) -> list[dict[str, Any]]:
    """The entries of one subject: ``name``, ``summary``, and what else is known about them.

    A model has one for each of ``batches``, with what a step on so many images weighs.
    """
    if what == "networks":
        return _networks()
    if what == "suites":
        return _suites()
    found = []
    for name in registry.names(what):
        thing = registry.find(what, name)
        parameters = registry.settings_of(thing)
        entry: dict[str, Any] = {
            "name": name,
            "summary": registry.summary(thing),
            "settings": {key: str(one.annotation) for key, one in parameters.items()},
            "defaults": {key: one.default for key, one in parameters.items() if one.default is not one.empty},
        }
        if what == "aggregation":
            from hpcdl.analysis.cost import costs

            entry["costs"] = costs(thing)
        found += [entry | weight for weight in _weights(thing, batches)] if what == "models" else [entry]
    return found


def described(entry: dict[str, Any], *, weighed: bool) -> str:
    """One line on an entry; with ``weighed`` a model's volumes instead of its summary."""
    if "parameters" not in entry:
        return str(entry["summary"])
    size = "x".join(map(str, entry["shape"]))
    if not weighed:
        multiply_adds = entry["multiply_adds_per_image"] / 1e9
        return f"{size:9}  {entry['parameters']:11,} parameters {multiply_adds:8.4f} GMAC  {entry['summary']}"
    weights, data, activations = (
        f"{entry[key] / 1e6:10,.1f} MB" for key in ("weight_bytes", "data_bytes", "activation_bytes")
    )
    flop = entry["forward_backward_flop"] / 1e12
    return (
        f"{size:9}  batch {entry['batch']:5}  |W|{weights}  |D|{data}  {flop:9.3f} TFLOP  activations{activations}"
    )


def settings(entry: dict[str, Any]) -> str:
    """One line on what a suite may set, with the values it has otherwise; empty where there is nothing."""
    known = entry.get("defaults", {})
    return ", ".join(
        f"{key} = {json.dumps(known[key])}" if known.get(key) is not None else f"{key} ({kind})"
        for key, kind in entry.get("settings", {}).items()
    )


def _weights(model: Callable[..., Any], batches: Sequence[int]) -> list[dict[str, Any]]:
    """What a model weighs on images of the size it is made for, the default of its first parameter."""
    from hpcdl.analysis.volumes import volumes

    shape, classes = (p.default for p in list(inspect.signature(model).parameters.values())[:2])
    layers = model(shape, classes)
    return [{"shape": shape, "classes": classes, **asdict(volumes(layers, shape, batch))} for batch in batches]


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
