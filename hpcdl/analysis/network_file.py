"""A network in a TOML file: prices, the ranks of a host, and where they come from."""

from __future__ import annotations

import math
import tomllib
from typing import TYPE_CHECKING, Any, Final

from hpcdl.fabric.network import EVERY_RANK, SHARED_MEMORY, Link, Network

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ALL: Final = "all"
"""Ranks per host where one host has them all."""


class NetworkFileError(Exception):
    """What is wrong with a network file; one line that names file and key."""


def written(network: Network, origin: Mapping[str, Any]) -> str:
    """The text of a file that :func:`loaded` reads; ``origin`` becomes its table of where the prices come from."""
    ranks_per_host = ALL if network.is_one_host else network.ranks_per_host
    tables: dict[str, Mapping[str, Any]] = {
        "network": {
            "name": network.name,
            "source": network.source,
            "ranks_per_host": ranks_per_host,
            "gamma": network.gamma,
        },
        "link": {"alpha": network.link.alpha, "beta": network.link.beta},
        "inside": {"alpha": network.inside.alpha, "beta": network.inside.beta},
        "origin": origin,
    }
    if network.is_one_host:
        del tables["link"]
    lines = ["# Seconds a message (alpha), a byte (beta), a byte reduced (gamma); inside: on one host."]
    for title, table in tables.items():
        known = {key: value for key, value in table.items() if value is not None}
        lines += ["", f"[{title}]", *(f"{key} = {_toml(value)}" for key, value in known.items())]
    return "\n".join(lines) + "\n"


def loaded(path: Path) -> tuple[Network, int | None]:
    """Read a network, and the most ranks that it was fitted to, None if it was not.

    Raises NetworkFileError for a file that cannot be read or holds no network.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NetworkFileError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise NetworkFileError(f"{path}: not TOML: {error}") from None
    head = _table(tables, "network", path)
    ranks_per_host = head.get("ranks_per_host", 1)
    if ranks_per_host == ALL:
        ranks_per_host = EVERY_RANK
    elif type(ranks_per_host) is not int or ranks_per_host < 1:
        raise NetworkFileError(f"{path}: network.ranks_per_host: must be a number from 1, or {ALL!r}")
    inside = _link(tables, "inside", path) if "inside" in tables else SHARED_MEMORY
    most = _table({"origin": {}, **tables}, "origin", path).get("most_ranks")
    if most is not None and (type(most) is not int or most < 1):
        raise NetworkFileError(f"{path}: origin.most_ranks: must be a number from 1, not {most!r}")
    network = Network(
        name=str(head.get("name", path.stem)),
        link=inside if ranks_per_host == EVERY_RANK else _link(tables, "link", path),
        source=str(head.get("source", path)),
        gamma=_price(head, "network", "gamma", path),
        inside=inside,
        ranks_per_host=ranks_per_host,
    )
    return network, most


def _table(tables: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    found = tables.get(name)
    if not isinstance(found, dict):
        raise NetworkFileError(f"{path}: {name}: there is no table [{name}]")
    return found


def _link(tables: Mapping[str, Any], name: str, path: Path) -> Link:
    table = _table(tables, name, path)
    return Link(*(_price(table, name, key, path) for key in ("alpha", "beta")))


def _price(table: Mapping[str, Any], name: str, key: str, path: Path) -> float:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise NetworkFileError(f"{path}: {name}.{key}: must be seconds, 0 or more, not {value!r}")
    return float(value)


def _toml(value: Any) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{" ".join(escaped.split())}"'
    return repr(value)
