"""Read from the history of the tree what claims said earlier, and with which verdict.

    python reports/oracles/claims_history.py     write papers/claims_earlier.csv, print claims without an id

``claims_ids.toml``, written by hand, maps clauses to rows of the registry. A row of the table is a period since
the first release in which task, limit and verdict on the page are equal. Verdicts that later pages call a model's,
and clauses that change at the same time, share a row. A clause that no page shows has a row if it was removed.
"""

import csv
import html
import re
import subprocess
import tomllib
from collections import Counter
from difflib import get_close_matches
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "hpcdl" / "papers" / "claims_earlier.csv"
IDS = tomllib.loads(Path(__file__).with_name("claims_ids.toml").read_text(encoding="utf-8"))
CLAIMS = ("hpcdl/report/claims.toml", "hpcdl/papers/claims")
PAGE = "reports/claims.md"
RELEASE, LAST = "ba13835f", "4349e55e"  # the first release; the last commit before the registry
NOTATION = ("f873f9dd", "9d658a39", "d7c92ad3", "c97f226b")  # tasks are written otherwise, and stay what they are
TODAYS_WORDS = {"holds": "yes", "does not hold here": "no", "fails": "no", "undecided": "open", "no run": ""}
UNSEEN = ("", "", "")
FIELDS = ("claim", "clause", "task", "limit", "expected")


def git(*arguments):
    """Return the lines that git prints."""
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).splitlines()


def clauses(commit):
    """Yield the clauses of a commit."""
    for name in git("ls-tree", "-r", "--name-only", commit, "--", *CLAIMS):
        for claim in tomllib.loads("\n".join(git("show", f"{commit}:{name}")))["claim"]:
            for own in claim.get("clause", [{}]):
                keys = {"here": "yes", **claim, **own}
                case, by, minus = ({**claim.get(key, {}), **own.get(key, {})} for key in ("case", "by", "minus"))
                other = {key: value for key, value in (by or minus).items() if case.get(key) != value}
                sides = [", ".join(f"{key}={side[key]}" for key in sorted(side)) for side in (case, other) if side]
                task = f"{keys.get('run')}: {keys.get('field')} of {(' / ' if by else ' - ').join(sides)}"
                limit = "; ".join(f"{key} {keys[key]:g}" for key in ("above", "below") if key in keys)
                expected = TODAYS_WORDS.get(keys["here"], keys["here"])
                values = (claim["text"], own.get("text", ""), task, limit, expected)
                yield dict(zip(FIELDS, values, strict=True))


def rows_of(text):
    """Yield claim, clause with a dash, verdict, its kind and number of each row of a page."""
    heading, claim = [], ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells[:1] == ["claim"]:
            heading = cells
        elif heading and cells:
            row = dict(zip(heading, cells, strict=False))
            clause = cells[0] if cells[0].startswith("- ") else ""
            claim = claim if clause else cells[0]
            verdict = row["verdict"].lstrip("✓✗? ")
            kind = row.get("by") or row.get("decided by") or row.get("marks", "")
            bounds = next((row[key] for key in ("95 %", "interval", "95 % or range") if key in row), "-")
            number = row.get("here", row["number"]) + (f" ({bounds})" if bounds != "-" else "")
            yield claim, clause, TODAYS_WORDS.get(verdict, verdict), re.sub(r" \(run .*", "", kind), number


def seen(clause, only, text, rows):
    """Return verdict, kind and number on a page; ``only``: in the claim's row. None if another clause is there."""
    claim, sentence = re.escape(clause["claim"]), ".+".join(map(re.escape, clause["clause"].split("{}")))
    summary = re.search(rf"{claim}\. This is [^:]*: (.*)", text)
    if only and summary and not re.match(sentence, summary[1]):
        return None
    of_claim, of_clause = rf"{claim}( \(.*)?$", "$" if only else rf"- {sentence}(: \S.*)?$"
    matching = (row[2:] for row in rows if re.match(of_claim, row[0]) and re.match(of_clause, row[1]))
    return next(matching, UNSEEN)


def see(period, verdict, kind, number):
    """Add a verdict with its number to a period; of numbers with equal digits the last form stays."""
    if verdict:
        before = period["verdict"].removesuffix("model").removesuffix(", then ")
        model = f"{before}, then model".removeprefix(", then ")
        digits = re.sub(r"\D", "", number.split()[0]).strip("0")
        numbers = {key: text for key, text in period["numbers"].items() if key != digits} | {digits: number}
        period |= {"verdict": model if verdict == "model" else verdict, "kind": kind, "numbers": numbers}


def periods(commits, pages):
    """Return the periods of all clauses, with their first and last commit, verdict, and the numbers of pages."""
    found, current = [], {}
    for index, name in enumerate(commits):
        text = html.unescape("\n".join(git("show", f"{name}:{PAGE}"))) if name in pages else ""
        rows, stated = list(rows_of(text)), list(clauses(name))
        count, tasks = Counter(clause["claim"] for clause in stated), {clause["task"] for clause in stated}
        views = [seen(clause, count[clause["claim"]] == 1, text, rows) for clause in stated]
        before, current = current, {}
        for period in before.values() if None in views else ():  # the page was made before claims changed
            if period["task"] not in tasks:
                see(period, *(seen(period, period["only"], text, rows) or UNSEEN))
        for clause, view in zip(stated, views, strict=True):
            words = " | ".join(clause[key] for key in FIELDS[:4])
            for of_row in [key for key, pattern in IDS.items() if re.search(pattern, words)] or [""]:
                of_limit, task = (of_row, clause["limit"]), clause["task"]
                if name in NOTATION and (*of_limit, task) not in before:
                    gone = [old for *key, old in before if tuple(key) == of_limit and old not in tasks]
                    task = next(iter(get_close_matches(task, gone, 1, 0)), task)
                period = before.get((*of_limit, task))
                row = UNSEEN if None in views and period is None else view
                if period is None or (period["verdict"] not in {"", row[0]} and row[0] not in {"", "model"}):
                    period = {"id": of_row, "first": index, "verdict": "", "numbers": {}}
                    found.append(period)
                period |= clause | {"last": index, "only": count[clause["claim"]] == 1}
                see(period, *row)
                current[*of_limit, clause["task"]] = period
    return found


def change(period, found):
    """Return what differs in the period of the same row that follows and has the most similar task."""
    following = {p["task"]: p for p in found if p["id"] == period["id"] and p["first"] == period["last"] + 1}
    for task in get_close_matches(period["task"], following, 1, 0):
        after, verdict = following[task], following[task]["verdict"].split(",")[0]
        words = [key for key in FIELDS if period[key] != after[key]]
        return ", ".join(words + ["verdict"] * (verdict != "" and not period["verdict"].endswith(verdict)))
    return "removed"


def main():
    """Write the table."""
    log = git("log", "--topo-order", "--reverse", "--abbrev=8", "--format=%h %cs", LAST, "--", *CLAIMS, PAGE)
    dates = dict(line.split() for line in log)
    commits = list(dates)
    released = len(git("log", "--format=%h", RELEASE, "--", *CLAIMS, PAGE)) - 1
    pages = git("log", "--abbrev=8", "--format=%h", LAST, "--", PAGE)
    found = [period for period in periods(commits, pages) if period["last"] >= released]
    rows = {}
    for period in sorted((p for p in found if p["id"]), key=lambda p: list(IDS).index(p["id"])):
        period["changed"] = "stands" if period["last"] + 1 == len(commits) else change(period, found)
        if period["verdict"] or period["changed"] == "removed":
            key = tuple(period[key] for key in ("id", "first", "last", "limit", "verdict", "changed"))
            rows.setdefault(key, []).append(period | {"numbers": "; ".join(period["numbers"].values())})
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        names = ("id", "first", "date", "last", *FIELDS, "verdict", "kind", "numbers", "changed")
        writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for equal in rows.values():
            first, last = (commits[equal[0][key]] for key in ("first", "last"))
            together = {key: " | ".join(period[key] for period in equal) for key in ("clause", "task", "numbers")}
            writer.writerow(equal[-1] | together | {"first": first, "date": dates[first], "last": last})
    for claim in dict.fromkeys(period["claim"] for period in found if not period["id"]):
        print("no registry row:", claim)


if __name__ == "__main__":
    main()
