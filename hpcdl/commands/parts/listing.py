"""Names that a suite can use, for ``hpcdl list``."""

from __future__ import annotations

import inspect
import json
import tomllib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from hpcdl import registry
from hpcdl.cases.spec import suite_tables as shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

USUAL_BATCH: Final = 256


def catalogue(
    subject: str, batches: Sequence[int] = (USUAL_BATCH,), *, layers: bool = False
) -> list[dict[str, Any]]:
    """Return the entries of a subject: ``name``, ``summary`` and further fields.

    A model has one entry per batch size in ``batches``, with the volumes of a step, and with those of each layer
    if ``layers``.
    """
    if subject == "networks":
        return _networks()
    if subject == "suites":
        return _suites()
    if subject == "schedules":
        return _schedules()
    found = []
    folder = "optim" if subject == "optimizers" else subject
    for name in registry.names(folder):
        thing = registry.find(folder, name)
        parameters = registry.settings_of(thing)
        entry: dict[str, Any] = {
            "name": name,
            "summary": registry.summary(thing),
            "settings": {key: str(one.annotation) for key, one in parameters.items()},
            "defaults": {key: one.default for key, one in parameters.items() if one.default is not one.empty},
        }
        if subject == "aggregation":
            from hpcdl.aggregation.parts.cost import costs

            entry["costs"] = costs(thing)
        volumes = _volumes(thing, batches, layers=layers) if subject == "models" else [{}]
        found += [entry | one for one in volumes]
    return found


def described(entry: dict[str, Any], *, volumes: bool) -> str:
    """Return one line on an entry; with ``volumes`` the volumes of a model instead of its summary."""
    if "parameters" not in entry:
        return str(entry["summary"])
    size = "x".join(map(str, entry["shape"]))
    if not volumes:
        multiply_adds = entry["multiply_adds_per_image"] / 1e9
        return f"{size:9}  {entry['parameters']:11,} parameters {multiply_adds:8.4f} GMAC  {entry['summary']}"
    weights, data, activations = (
        f"{entry[key] / 1e6:10,.1f} MB" for key in ("weight_bytes", "data_bytes", "activation_bytes")
    )
    flop = entry["forward_backward_flop"] / 1e12
    return (
        f"{size:9}  batch {entry['batch']:5}  |W|{weights}  |D|{data}  {flop:9.3f} TFLOP  activations{activations}"
    )


def layer_lines(entry: dict[str, Any]) -> list[str]:
    """Return a table of the layers of a model, one line each; empty for entries without layers."""
    layers = entry.get("layers", [])
    width = max((len(one["name"]) for one in layers), default=0)
    return [
        f"{one['name']:{width}}  {'x'.join(map(str, one['output'])):12}"
        f"  |W|{one['weight_bytes'] / 1e6:10,.3f} MB  |D|{one['data_bytes'] / 1e6:10,.1f} MB"
        f"  {one['forward_backward_flop'] / 1e9:12,.3f} GFLOP"
        for one in layers
    ]


def settings(entry: dict[str, Any]) -> str:
    """Return one line with the settings of an entry and their defaults; empty without settings."""
    known = entry.get("defaults", {})
    return ", ".join(
        f"{key} = {json.dumps(known[key])}" if known.get(key) is not None else f"{key} ({kind})"
        for key, kind in entry.get("settings", {}).items()
    )


def _volumes(model: Callable[..., Any], batches: Sequence[int], *, layers: bool) -> list[dict[str, Any]]:
    """Return the volumes of a model per batch size, for images of the model's default shape."""
    from hpcdl.nn.volumes import by_layer, volumes

    shape, classes = (p.default for p in list(inspect.signature(model).parameters.values())[:2])
    network, found = model(shape, classes), []
    for batch in batches:
        entry = {"shape": shape, "classes": classes, **asdict(volumes(network, shape, batch))}
        if layers:
            entry["layers"] = [
                {"name": name, "output": output, **asdict(one)}
                for name, output, one in by_layer(network, shape, batch)
            ]
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


def _schedules() -> list[dict[str, Any]]:
    """Return the schedules, each with its own settings and those of a warm-up."""
    from hpcdl.optim.parts.schedules import SCHEDULES, with_warmup

    around = registry.settings_of(with_warmup)
    del around["global_batch"]  # the case's
    return [
        {
            "name": name,
            "summary": registry.summary(shape),
            "settings": {key: str(one.annotation) for key, one in parameters.items()},
            "defaults": {key: one.default for key, one in parameters.items()},
        }
        for name, shape in SCHEDULES.items()
        for parameters in [{**registry.settings_of(shape), **around}]
    ]


def _suites() -> list[dict[str, Any]]:
    """Return the suites of the package."""
    return [
        {
            "name": name,
            "summary": tomllib.loads(path.read_text(encoding="utf-8"))["suite"]["question"],
            "path": str(path),
        }
        for name, path in shipped.suites().items()
    ]
