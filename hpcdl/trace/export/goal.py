"""GOAL schedules (Hoefler, Siebert & Lumsdaine 2009), which LogGOPSim and ATLAHS simulate.

Each message is a send and a receive with a unique tag. Computing, and time between two events, is ``calc`` in
ns. An event requires the event of its rank that ended last before it began, and the events of its task that ended
since the task's event before. Time spent in messages is left out: the simulator computes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from hpcdl.trace.messages import matched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pandas as pd

    from hpcdl.trace.export.selection import Selection


def write(path: Path, selection: Selection) -> int:
    """Write the schedule of a selection; return its number of messages.

    Sends and receives whose other end is not in the selection are left out. Raises ValueError for collectives of
    the library, whose messages are unknown, and OSError.
    """
    events = selection.events
    natives = sorted({label for label in events["label"].astype(str) if label.startswith("native ")})
    if natives:
        raise ValueError(f"{selection.name} calls {natives[0]!r}, whose messages the MPI library does not show")
    messages = matched(events)
    tags = dict(zip(messages["send"], range(len(messages)), strict=True))
    tags |= dict(zip(messages["recv"], range(len(messages)), strict=True))
    ranks = sorted(set(events["rank"]))
    numbers = {rank: number for number, rank in enumerate(ranks)}
    with path.open("w", encoding="ascii") as file:
        file.write(f"num_ranks {len(ranks)}\n")
        for rank in ranks:
            file.write(f"\nrank {numbers[rank]} {{\n")
            _write_rank(file, events[events["rank"] == rank], tags, numbers)
            file.write("}\n")
    return len(messages)


def _write_rank(file: TextIO, events: pd.DataFrame, tags: dict[int, int], numbers: dict[int, int]) -> None:
    ordered = events.sort_values(["begin", "end"], kind="stable")
    line = 0
    written: dict[int, int] = {}  # row: its line
    for row, gap, label, length, peer, size, required in _required(ordered):
        lines = sorted({written[one] for one in required if one in written})
        if gap > 0:
            line += 1
            file.write(f"l{line}: calc {gap}\n" + "".join(f"l{line} requires l{one}\n" for one in lines))
            lines = [line]
        if label in {"send", "recv"}:
            if row not in tags:
                continue
            direction = "to" if label == "send" else "from"
            text = f"{label} {size}b {direction} {numbers[peer]} tag {tags[row]}"
        else:
            text = f"calc {length}"
        line += 1
        file.write(f"l{line}: {text}\n" + "".join(f"l{line} requires l{one}\n" for one in lines))
        written[row] = line


def _required(ordered: pd.DataFrame) -> Iterator[tuple[int, int, str, int, int, int, set[int]]]:
    """Yield row, idle time before it, label, length, peer, bytes of each event and the rows that it requires."""
    last: tuple[int, int] | None = None  # end and row of the event that ended last before the current one began
    running: list[tuple[int, int]] = []  # end and row of events that have not ended
    open_rows: dict[int, list[tuple[int, int]]] = {}  # task: its events that no later one of the task requires
    before: dict[int, tuple[int, set[int]]] = {}  # task: begin of its event before, and what that requires
    names = ("task", "label", "begin", "end", "peer", "bytes")
    for row, task, label, begin, end, peer, size in zip(
        ordered.index, *(ordered[name].tolist() for name in names), strict=True
    ):
        ended = [one for one in running if one[0] <= begin]
        running = [one for one in running if one[0] > begin]
        last = max([*ended, last] if last else ended, default=None)
        if task in before and before[task][0] == begin:  # both ends of an exchange
            required = before[task][1]
        else:
            mine = open_rows.get(task, [])
            required = {one for at, one in mine if at <= begin}
            open_rows[task] = [one for one in mine if one[0] > begin]
            required |= {last[1]} if last else set()
        before[task] = begin, required
        open_rows.setdefault(task, []).append((end, row))
        running.append((end, row))
        yield row, begin - last[0] if last else begin, label, end - begin, peer, size, required
