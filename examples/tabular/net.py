"""Classify tumours as malignant or benign, from 30 measurements of 569 patients."""

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, random_split


class Net(nn.Sequential):
    """A network of input shape (batch, 30) and logits (batch, 2)."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(30), nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 2))


def data() -> list[Subset[tuple[Tensor, ...]]]:
    """Training and validation data: (measurements, class) pairs."""
    x, y = load_breast_cancer(return_X_y=True)
    rows = TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    return random_split(rows, [0.8, 0.2])
