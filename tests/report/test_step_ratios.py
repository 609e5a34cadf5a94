"""Answers by ratios of steps: of the largest batch and the smallest, and of split batches and split layers."""

from hpcdl.report.run.findings import Findings
from hpcdl.report.sections import step_ratios


def answered(hand, name):
    return Findings(hand.read(suite_text=f"[suite]\nname = 's'\nanswer = '{name}'\n"), "run")


def test_the_largest_batch_is_compared_with_one_image(hand):
    for launch in (0, 1, 2):
        for model, last in (("nin", 30.0), ("alexnet", 20.0), ("lenet5", 6.0)):
            for batch, ms in ((1, 1.0), (8, 5.0), (64, last)):
                hand.train([[ms * (1 + 0.01 * launch)] * 10], model=model, global_batch=batch, launch=launch)
    answer = step_ratios.batch_answer(answered(hand, "batch_times"))
    assert answer.headline == ("A batch of 64 takes 30.0 times as long as a batch of 1 for NiN.")
    assert [line.split()[5] for line in answer.details] == ["20.0", "6.00"]
    assert step_ratios.batch_answer(answered(hand, "scaling")) is None


def test_split_layers_are_compared_with_the_split_batch_on_the_most_ranks(hand):
    taken = {"wall_ns": 10**9, "busy_ns": 10**9, "steal_ns": 10**9 // 2}
    for model, counters in (("nin", {}), ("alexnet", {"counters": [taken] * 4})):
        hand.train([[10.0] * 10] * 2, model=model)
        hand.train([[40.0] * 10] * 4, model=model, **counters)
        for mesh, ms in (("model(data=1)", 20.0), ("hybrid(data=1)", 10.0)):
            hand.train([[ms] * 10] * 4, model=model, parallelism=mesh)
    answer = step_ratios.split_answer(answered(hand, "splits"))
    says = "A hybrid split is 4.00 times and splitting the layers 2.00 times as fast as splitting the batch"
    assert answer.headline == f"{says} (NiN, 4 ranks): not decided, as one launch decides nothing."
    assert [*answer.details] == [f"{says} (AlexNet, 4 ranks): not decided, as other load disturbed it."]
