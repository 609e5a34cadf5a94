"""Counters of links in records: by host and device, their growth from the beginning of each job to its end.

The names are those of the kernel and its drivers: sysfs for InfiniBand, RoCE, Slingshot (cxi) and Ethernet, and
what ``ethtool -S`` prints. ``port_xmit_data`` and ``port_rcv_data`` count four octets, ``port_xmit_wait`` ticks.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal

from hpcdl.trace.files import JsonMapping, JsonObject

Growth = dict[str, dict[str, int | None]]
"""By device and counter; one that did not grow is left out; None if its growth is unknown: reset, or saturated."""
LinkCounters = dict[str, Growth | None]
"""By host; None if the host's counters could not be read at the end."""
Kind = Literal["traffic", "errors", "congestion"]

TRAFFIC: Final = {
    *(f"{way}_{unit}" for way in ("rx", "tx") for unit in ("bytes", "packets")),
    *(f"port_{way}_{unit}" for way in ("rcv", "xmit") for unit in ("data", "packets")),
}
UNKNOWN_RATES: Final = {0, 0xFFFF, 0xFFFFFFFF}
"""Rates (Mbit/s) of drivers that know none: -1 in 16 or 32 bits (linux/ethtool.h, SPEED_UNKNOWN)."""
BITS: Final = {
    **dict.fromkeys(("local_link_integrity_errors", "excessive_buffer_overrun_errors"), 4),
    **dict.fromkeys(("link_error_recovery", "link_downed"), 8),
    **{f"port_{way}_constraint_errors": 8 for way in ("rcv", "xmit")},
    **dict.fromkeys(("symbol_error", "port_rcv_errors", "port_xmit_discards", "VL15_dropped"), 16),
    **{f"port_rcv_{error}_errors": 16 for error in ("remote_physical", "switch_relay")},
    **{f"port_{way}_{unit}": 32 for way in ("rcv", "xmit") for unit in ("data", "packets")},
    "port_xmit_wait": 32,
}
"""Widths of the counters of InfiniBand ports, which stay at their maximum (linux/drivers/infiniband/core/sysfs.c).

Of data and packets, most ports have 64 bits.
"""
KINDS: Final[dict[Kind, re.Pattern[str]]] = {
    "congestion": re.compile(
        r"\b(wait|cnp|ecn|mrkd|marked|pauses?|paused|pfc|xoff|xon|stalls?|cong|congestion|slow restart|thres)\b"
    ),
    "errors": re.compile(
        r"\b(err\w*|drop\w*|disc|discards?|discarded|retrans\w*|retry|retries|timeouts?|naks?|nacks?|rnr|out of"
        r"|oos|overruns?|(?<!match )overflow|oflo?w|i?crc|fcs|symbol|recover\w*|uncorrect\w*|replay|down|downed"
        r"|integrity)\b"
    ),
}
_QUEUE: Final = re.compile(r"(ch|[rt]xq?)[-_]?(queue_)?\d+[\W_]|\[\d+\]|.*_(lane|fecl)_")
"""Counters of one queue, of which the driver has the sum, and of a lane's errors, which are corrected.

Priorities and traffic classes are no queues.
"""


@lru_cache(4096)
def kind_of(counter: str) -> Kind | None:
    """Return the kind of a counter by its name; None if it tells nothing about links."""
    if counter in TRAFFIC:
        return "traffic"
    if _QUEUE.match(counter):
        return None
    words = " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", counter)).lower()
    return next((kind for kind, pattern in KINDS.items() if pattern.search(words)), None)


def growth(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> Growth:
    """Return the growth of the counters of the devices that were there before and after."""

    def of(device: str, name: str, value: int) -> int | None:
        earlier = before[device].get(name, value)
        return None if value < earlier or value == 2 ** BITS.get(name, 64) - 1 else value - earlier

    return {
        device: {name: grown for name, value in counters.items() if (grown := of(device, name, value)) != 0}
        for device, counters in after.items()
        if device in before
    }


def recorded(environment: JsonMapping) -> LinkCounters:
    """Return the link counters of a record; older ones have two readings of one host."""
    if isinstance(counters := environment.get("link_counters"), dict):
        return counters
    before, after = (_flat(environment.get(name)) for name in ("counters", "counters_after"))
    return {str(environment.get("hostname", "unknown")): growth(before, after)} if before and after else {}


def _flat(reading: object) -> dict[str, dict[str, int]]:
    groups: JsonObject = reading if isinstance(reading, dict) else {}
    devices = {"tcp": groups.get("tcp")}
    for group in ("network", "infiniband"):
        devices |= groups[group] if isinstance(groups.get(group), dict) else {}
    return {
        device: {name: value for name, value in counters.items() if isinstance(value, int) and kind_of(name)}
        for device, counters in devices.items()
        if isinstance(counters, dict)
    }


def total(records: Iterable[LinkCounters]) -> LinkCounters:
    """Return the sum over the launches, or the jobs, of a run."""
    sums: LinkCounters = {}
    for host, devices in (item for record in records for item in record.items()):
        summed = sums.setdefault(host, {})
        if devices is None or summed is None:
            sums[host] = None
            continue
        for device, counters in devices.items():
            values = summed.setdefault(device, {})
            for name, value in counters.items():
                earlier = values.get(name, 0)
                values[name] = None if value is None or earlier is None else earlier + value
    return sums
