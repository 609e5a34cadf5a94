"""Sharding: on any number of ranks, the same images in the same order."""

import numpy as np
import pytest

from hpcdl.data.parts.sharding import Shares, epoch_order, own_images, share, steps_per_epoch


def test_an_order_depends_on_epoch_and_seed_only_and_is_the_same_on_every_machine():
    orders = {epoch_order(1000, epoch, seed).tobytes() for epoch in range(10) for seed in range(10)}
    assert len(orders) == 100
    assert epoch_order(12, 0, 0).tolist() == [11, 3, 2, 1, 8, 6, 0, 7, 4, 10, 5, 9]
    assert epoch_order(12, 1, 7).tolist() == [11, 1, 3, 2, 10, 7, 8, 4, 5, 9, 0, 6]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 17, 64])
@pytest.mark.parametrize("global_batch", [1, 2, 7, 32, 63, 64, 100])
def test_shares_of_all_ranks_are_the_batch(ranks, global_batch):
    order = epoch_order(331, 0, 0)
    steps = steps_per_epoch(331, global_batch)
    assert steps == 331 // global_batch
    seen = []
    for step in range(steps):
        shares = [share(order, step, global_batch, rank, ranks) for rank in range(ranks)]
        batch = np.concatenate(shares)
        np.testing.assert_array_equal(batch, order[step * global_batch : (step + 1) * global_batch])
        sizes = [len(part) for part in shares]
        assert max(sizes) - min(sizes) <= 1
        if global_batch % ranks == 0:
            assert set(sizes) == {global_batch // ranks}
        seen.extend(batch.tolist())
    assert len(set(seen)) == len(seen) == steps * global_batch


@pytest.mark.parametrize("weights", [(1,), (7,), (3, 1), (1, 5, 2), (1, 100, 1)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 64])
def test_unequal_shares_are_the_batch_and_proportional_to_weights(ranks, weights):
    order, shares = epoch_order(331, 0, 0), Shares(weights=weights)
    whole = sum(shares.among(ranks))
    seen = []
    for step in range(3):
        parts = [share(order, step, 100, rank, ranks, shares) for rank in range(ranks)]
        for part, weight in zip(parts, shares.among(ranks), strict=True):
            assert abs(len(part) - weight * 100 / whole) < 1
        seen.extend(np.concatenate(parts).tolist())
    assert seen == order[:300].tolist()


def test_weights_are_whole_numbers_and_the_last_applies_to_all_further_ranks():
    three = Shares(weights=(3, 1))
    assert [three.among(ranks) for ranks in (1, 2, 4)] == [(3,), (3, 1), (3, 1, 1, 1)]
    assert str(three) == "3:1"
    for weights in [(), (0,), (1, -1), (1.5,), (True,), ("1",)]:
        with pytest.raises(ValueError, match=r"^weights: must be whole numbers of at least 1, not \["):
            Shares(weights=weights)


def test_invalid_arguments_are_refused():
    order = epoch_order(100, 0, 0)
    for step in (-1, 3):
        with pytest.raises(ValueError, match=f"no step {step} in 100 images with a global batch of 32"):
            share(order, step, 32, 0, 1)
    for rank in (-1, 4):
        with pytest.raises(ValueError, match=f"no rank {rank} among 4"):
            share(order, 0, 32, rank, 4)
    with pytest.raises(ValueError, match="global batch 101 is larger than the number of images, 100"):
        steps_per_epoch(100, 101)
    for batch in (0, -5):
        with pytest.raises(ValueError, match="must be positive"):
            steps_per_epoch(100, batch)
    for images, epoch, seed in ((-1, 0, 0), (10, -1, 0), (10, 0, -1)):
        with pytest.raises(ValueError, match=r".+"):
            epoch_order(images, epoch, seed)


def test_own_images_are_the_same_in_all_epochs_in_another_order():
    for images, ranks, weights in [(10, 3, (1,)), (103, 4, (3, 1)), (7, 7, (1,))]:
        shares = Shares(weights=weights)
        for rank in range(ranks):
            epochs = [own_images(images, epoch, 5, rank, ranks, shares) for epoch in range(4)]
            assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1
            assert len(epochs[0]) < 6 or len({tuple(epoch) for epoch in epochs}) > 1
        every = [own_images(images, 0, 5, rank, ranks, shares) for rank in range(ranks)]
        assert sorted(image for mine in every for image in mine) == list(range(images))
