"""Runs with content for every figure of a report."""

from hpcdl.trace.recorder import Update

HOSTILE = '<script>alert("$x^2$ &amp;")</script><img src=https://example.org/x.png onerror=a()>\x1b\u202e'


def steps(ms):
    return [ms * (1 + 0.01 * (n % 5)) for n in range(20)]


def evaluations(ms):
    return [(8 * n, n, n * ms / 100, 0.3, 0.8 + 0.03 * n, 2048) for n in (1, 2, 3)]


def all_figures(hand, name="mine"):
    """A run with content for every figure."""
    for scheme in ("ring", "tree", "none"):
        for ranks in (1, 2, 4):
            busy = {"compute": [70 / ranks + rank for rank in range(ranks)], "waiting": [1.0] * ranks}
            fields = {"aggregation": scheme, "model": name, "evaluations": evaluations(80 / ranks), **busy}
            hand.train([steps(80 / ranks + len(scheme))] * ranks, **fields)
    updates = [Update(10**9 + n * 10**6, 1 + n % 2, n, n % 4, 0.1) for n in range(300)]
    free = {"training": "asynchronous", "aggregation": "own", "updates": {0: updates}, "common_clock": True}
    hand.train([steps(20)] * 3, model=name, **free)
    allreduce = {"kind": "collective", "collective": "allreduce", "dtype": "float32"}
    for scheme, factor in (("ring", 1.0), ("native", 3.0)):
        for ranks in (2, 4):
            for size in (1024, 1 << 20):
                times = [steps(factor if size > 2000 else 4 - factor)] * ranks
                fields = {"aggregation": scheme, "message_bytes": size, "nodes": ranks, **allreduce}
                hand.case(times, case=f"{name} {scheme} {ranks} {size}", **fields)
    pairs = {"kind": "pairwise", "pattern": "all_pairs", "message_bytes": 1 << 16, "warmup_steps": 2}
    hand.case([steps(2)] * 4, case=name, **pairs)
    hosts = [f"h{rank}" for rank in range(4)]
    emulated = {"hosts": 4, "rate": "1gbit", "slow": {}, "bytes_per_second": dict.fromkeys(hosts, 10**8)}
    environment = {"key": "k", "emulated": emulated, "ranks": [{"hostname": one} for one in hosts]}
    return hand.read(environment, f"[suite]\nname = 's'\nquestion = 'Is it?'\n# {name!r}\n")
