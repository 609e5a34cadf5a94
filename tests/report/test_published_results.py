"""Published figures beside ours."""

import tomllib
from pathlib import Path

import pytest

from hpcdl import suite
from hpcdl.analysis.run.record import Record
from hpcdl.report.run import published_results
from hpcdl.report.run.published_results import QUANTITIES, answer, figures

ROOT = Path(__file__).parents[2]


def record(**fields):
    return Record(kind="replay", **{"global_batch": 1024, **fields})


@pytest.fixture
def paper(tmp_path, monkeypatch):
    """Return a function that writes a paper's results and returns its figures for some records."""
    monkeypatch.setattr(published_results, "PAPERS", tmp_path)

    def compared(results, records):
        (tmp_path / "mine.toml").write_text(f'source = "a thread"\n[[results]]\n{results}')
        return figures("mine", records)

    return compared


def test_speedups_are_per_image_and_hours_those_of_all_epochs(paper):
    records = [record(model="m", ranks=1, step_seconds=8.0), record(model="other", ranks=4, step_seconds=1.0)]
    records += [record(model="m", ranks=4, global_batch=2048, step_seconds=5.0)]
    result = 'name = "a"\ncase = {model = "m"}\nquantity = '
    (speedup,) = paper(f'{result}"speed-up per image"\nvalues = {{4 = 3.3}}', records)
    assert (speedup.here, speedup.verdict) == (pytest.approx(3.2), "yes")
    one, four = paper(f'{result}"hours"\nepochs = {{1 = 64, 4 = 72}}\nvalues = {{1 = 180, 4 = 100}}', records)
    assert one.here == pytest.approx(64 * 1_281_167 / 128 / 3600)
    assert four.here == pytest.approx(one.here / 3.2 * 72 / 64)
    assert (one.verdict, four.verdict) == ("yes", "no")


def test_the_answer_counts_figures_by_their_error_and_names_those_that_are_missed(paper):
    records = [record(model="m", ranks=ranks, step_seconds=8.0 / ranks) for ranks in (1, 2, 4, 8)]
    begin = 'name = "m"\nquantity = "speed-up per image"\n'
    case = f'{begin}case = {{model = "m"}}\n'
    near = paper(f"{case}values = {{2 = 1.83, 4 = 3.3, 8 = 6.3}}", records)
    assert [figure.verdict for figure in near] == ["yes", "near", "no"]
    wide = paper(f"{case}scatter = 0.3\nvalues = {{4 = 3.1, 8 = 6}}", records)
    assert [figure.verdict for figure in wide] == ["yes", "no"]
    paper(f"{case}values = {{2 = 2, 4 = 3.3, 8 = 4}}\n[[results]]\n{case}ranks = [4]", records)
    assert answer(["mine"], records)[:2] == (
        "Of 3 published figures the simulation reproduces 1, 1 nearly and 1 not.",
        [
            published_results.MEANING,
            "Not reproduced: for m on 8 ranks the simulation has a speed-up per image of 8.00, the paper 4.00.",
            "Not in the paper: for m on 4 ranks the simulation has a speed-up per image of 4.00.",
        ],
    )
    assert answer(["mine"], []) is None
    fitted, other, *silent = paper(
        f"{case}fitted = [2]\nvalues = {{2 = 2, 4 = 4}}\n[[results]]\n{begin}not_stated = 'batch'\nvalues = {{8 = 5}}",
        records,
    )
    assert [figure.verdict for figure in (fitted, other, *silent)] == ["fitted", "yes", "not stated: batch"]
    headline, (_, *uncounted), *_ = answer(["mine"], records)
    assert headline == "Of 1 published figure the simulation reproduces 1, 0 nearly and 0 not."
    assert [sentence.split(":")[0] for sentence in uncounted] == ["Not counted", "Not simulated"]


def test_speedups_are_relative_to_the_stated_case_on_one_rank_of_the_same_machine(paper):
    begin = 'name = "a"\nquantity = "speed-up per image"\n'
    records = [record(model="m", ranks=1, global_batch=batch, step_seconds=batch + 2) for batch in (2, 8)]
    records += [record(model="m", ranks=4, global_batch=8, step_seconds=5.0)]
    case = 'case = {model = "m", global_batch = 8}\nvalues = {4 = 4}'
    for base, speedup in ((2, 3.2), (8, 2)):
        (figure,) = paper(f"{begin}base = {{global_batch = {base}}}\n{case}", records)
        assert figure.here == pytest.approx(speedup)
    records = [record(model="m", device="k20", ranks=4, step_seconds=2.5, parallelism="model(data=1)")]
    records += [record(model="m", device=name, ranks=1, step_seconds=s) for name, s in (("k20", 8), ("h100", 1))]
    case = 'case = {model = "m", device = "k20", parallelism = "model(data=1)"}\nvalues = {4 = 4}'
    (figure,) = paper(f"{begin}{case}", records)
    assert figure.here == pytest.approx(3.2)


@pytest.mark.slow
def test_every_result_has_a_case_in_the_suite_that_names_its_paper():
    suites = [*(ROOT / "suites").glob("*.toml")]
    named = {path: papers for path in suites if (papers := suite.papers(path.read_text()))}
    for path, papers in named.items():
        cases = suite.load(path, check=False).cases
        records = [Record.of({**case.fields(), "predicted_seconds": 1.0}) for case in cases]
        for paper in papers:
            data = tomllib.loads((suite.PAPERS / f"{paper}.toml").read_text())
            wanted = {(table["name"], table["quantity"]) for table in data["results"]}
            matched = figures(paper, records)
            assert wanted <= {(figure.name, figure.quantity) for figure in matched}
            points = sum(len(table.get("values") or table["ranks"]) for table in data["results"])
            assert all(("case" in table) != ("not_stated" in table) for table in data["results"])
            assert len([figure for figure in matched if figure.ranks]) == points
            assert all(table["quantity"] in QUANTITIES for table in data["results"])
    every = {paper for papers in named.values() for paper in papers}
    assert every == {path.stem for path in suite.PAPERS.glob("*.toml")}


def test_unknown_papers_are_refused(tmp_path):
    case = '[[case]]\nkind = "collective"\naggregation = "ring"\nranks = 2\nmessage_bytes = 8\n'
    path = tmp_path / "s.toml"
    path.write_text(f'[suite]\nname = "s"\npapers = ["fire"]\n{case}')
    with pytest.raises(suite.UsageError, match="papers: unknown 'fire'"):
        suite.load(path)
