"""Names in files of older versions, in which ``asynchronous`` had the settings of five strategies."""

import json
import re
from typing import Final

from hpcdl.trace.files import JsonMapping, JsonObject

_ROLES: Final = {"servers", "dedicated"}
SETTINGS: Final[dict[str, set[str]]] = {
    "asynchronous": {"delay_compensation", "strength"} | _ROLES,
    "softsync": {"collect", "scale_rate"} | _ROLES,
    "m_synchronous": {"collect", "stale", "dedicated"},
    "ssp": {"bound", "collect", "push"} | _ROLES,
    "downpour": {"n_fetch", "n_push", "overlap", "local_rate", "warm_start"} | _ROLES,
}
"""Settings of the older ``asynchronous`` that each strategy has; a case is of the first that has all its."""
_DEFAULTS: Final = {
    **dict.fromkeys(("collect", "n_fetch", "n_push", "servers"), "1"),
    **dict.fromkeys(("overlap", "dedicated"), "False"),
    **dict.fromkeys(("scale_rate", "delay_compensation"), "none"),
    "local_rate": "1.0",
    "warm_start": "0",
    "stale": "apply",
    "push": "gradients",
}
_LABEL: Final = re.compile(r"(?<![\w:.])asynchronous\(([^()]*)\)")
_TABLE: Final = re.compile(r'\{"name": "asynchronous"[^{}]*\}')


def spelled_now(text: str) -> str:
    """Return a text of a run or an archive with the present names of strategies, in labels and tables of JSON.

    A combination that no strategy has any more keeps its older name.
    """
    if "asynchronous" not in text:
        return text
    text = _LABEL.sub(_label, text)
    return _TABLE.sub(lambda match: json.dumps(_renamed(json.loads(match[0]))), text)


def _label(match: re.Match[str]) -> str:
    pairs = [pair.partition("=") for pair in match[1].split(",") if pair]
    now = _renamed({key: value for key, _, value in pairs})
    inside = ",".join(f"{key}={value}" for key, value in now.items() if key != "name")
    return f"{now['name']}({inside})" if inside else str(now["name"])


def _renamed(older: JsonMapping) -> JsonObject:
    """Return the name and the settings of a strategy; values of ``older`` are those of a suite, or their texts."""
    values = {key: value for key, value in older.items() if key != "name"}
    changed = {key for key, value in values.items() if str(value) != _DEFAULTS.get(key)}
    for name, settings in SETTINGS.items():
        if changed <= settings and (name != "ssp" or "bound" in changed):
            collect = {"collect": 1} if name in {"softsync", "m_synchronous"} else {}
            kept = {key: value for key, value in values.items() if key in settings - {"stale"}}
            return {"name": name, **(kept if "collect" in kept else collect | kept)}
    return {"name": "asynchronous", **values}
