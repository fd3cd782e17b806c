"""The task digits: it learns, its noise is a function of seed, epoch and sample, and its data."""

from __future__ import annotations

import torch

from cloudtrain_trainer.tasks import Draw, digits
from cloudtrain_trainer.tasks.digits import read, split


def test_the_loss_decreases_in_eight_steps() -> None:
    task = digits.build(0)
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), task.lr)
    inputs, targets = task.train[Draw(0, list(range(0, 16 * 40, 40)))]
    losses = []
    for _ in range(8):
        loss = task.loss(task.call(model, inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert task.correct is not None
    right = task.correct(task.call(model, inputs), targets)
    assert right.shape == ()
    assert 0 <= float(right) <= len(targets)


def test_samples_depend_on_seed_epoch_and_index_only() -> None:
    data = digits.build(0).train
    several = data[Draw(2, [9, 4, 5])]
    data[Draw(3, [1])]
    alone = data[Draw(2, [4])]
    other_order = data[Draw(2, [5, 9])]
    for part in (0, 1):
        assert torch.equal(alone[part][0], several[part][1])
        assert torch.equal(other_order[part], several[part][[2, 0]])
    assert torch.equal(digits.build(0).train[Draw(2, [4])][0], alone[0])
    assert not torch.equal(data[Draw(3, [4])][0], alone[0])
    assert not torch.equal(digits.build(1).train[Draw(2, [4])][0], alone[0])


def test_the_digits_equal_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    images, labels = read()
    expected = load_digits()
    assert torch.equal(images[:, 0], torch.tensor(expected.images / 16, dtype=torch.float32))
    assert torch.equal(labels, torch.tensor(expected.target))


def test_the_split_is_stratified_and_fixed_by_the_seed() -> None:
    labels = read()[1]
    train, validation = split(labels, seed=3)
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(1797))
    shares = torch.bincount(labels[validation]) / torch.bincount(labels)
    assert ((shares - 0.2).abs() < 0.01).all()
    assert torch.equal(split(labels, seed=3)[0], train)
    assert not torch.equal(split(labels, seed=4)[0], train)
