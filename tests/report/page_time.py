"""Time and size of the history page and the report page of 200 cases.

python tests/report/page_time.py
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import Hand
from contract.archives import archive

from hpcdl.report.history import render as history_page
from hpcdl.report.run.render import render


def timed(title, make):
    begin, worked = time.perf_counter(), time.process_time()
    size = len(make().encode())
    wall, worked = time.perf_counter() - begin, time.process_time() - worked
    print(f"{title}: {wall:.1f} s ({worked:.1f} s of CPU time), {size / 2**20:.2f} MiB", flush=True)


def wide(folder):
    """Return a run of 200 training cases."""
    hand = Hand(folder)
    for scheme in range(50):
        for ranks in (1, 2, 4, 8):
            times = [[80 / ranks + scheme + number % 3 for number in range(20)]] * ranks
            hand.train(times, aggregation=f"scheme{scheme}", compute=[70 / ranks] * ranks)
    return hand.read()


if __name__ == "__main__":
    nights = archive(slower=[(3, 300, 1.2), (4, 363, 1.1)])
    timed("history judged and its page, 200 cases x 365 nights", lambda: history_page([nights], {}))
    timed("its page alone", lambda: history_page([nights], {}))
    with tempfile.TemporaryDirectory() as folder:
        run = wide(Path(folder))
        timed("report page, 200 cases", lambda: render([run], "html"))
