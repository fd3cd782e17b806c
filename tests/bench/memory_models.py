"""Twenty models that are not the trainer's, each as a task with random data: what users bring, in
small.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloudtrain_trainer.tasks import Task

CLASSES = 10
SAMPLES = 128


class Random(torch.utils.data.Dataset[Any]):
    """Inputs of one shape, floats or tokens below `vocabulary`, and a class for each."""

    def __init__(self, shape: tuple[int, ...], vocabulary: int = 0) -> None:
        self.shape = shape
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if self.vocabulary:
            return torch.randint(self.vocabulary, self.shape), index % CLASSES
        return torch.randn(self.shape), index % CLASSES


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.shortcut = shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.shortcut(x) + self.layers(x)
        return out


class Dense(nn.Module):
    """The input and what is computed from it, side by side."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.layers(x)], 1)


class Branches(nn.Module):
    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, width // 4, 1),
            nn.SiLU(),
            nn.Conv2d(width // 4, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * self.net(x).sigmoid()
        return out


class Patches(nn.Module):
    """An image as a sequence of patches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cut(x).flatten(2).transpose(1, 2)
        return out


class Transposed(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.transpose(1, 2)).transpose(1, 2)
        return out


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0][:, -1]
        return out


def conv(
    a: int, b: int, size: int = 3, stride: int = 1, groups: int = 1, act: Any = nn.ReLU
) -> list[nn.Module]:
    return [
        nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(b),
        act(),
    ]


def head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]


def alexnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 11, 4, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 96, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96 * 16, 512), nn.ReLU(), nn.Dropout(), nn.Linear(512, CLASSES),
    )  # fmt: skip


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in ((3, 32), (32, 64), (64, 128)):
        layers += [
            nn.Conv2d(a, b, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(b, b, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(128 * 64, 256), nn.ReLU(), nn.Linear(256, CLASSES)
    )


def resnet18() -> nn.Module:
    layers = conv(3, 16, 7, 2)
    a = 16
    for b in (16, 32, 64, 128):
        stride = 1 if a == b else 2
        shortcut = nn.Conv2d(a, b, 1, stride) if a != b else None
        layers += [Residual(*conv(a, b, 3, stride), *conv(b, b)[:2], shortcut=shortcut), nn.ReLU()]
        a = b
    return nn.Sequential(*layers, *head(128))


def wide_resnet() -> nn.Module:
    blocks = [Residual(*conv(96, 96), *conv(96, 96)[:2]) for _ in range(2)]
    return nn.Sequential(*conv(3, 96), *blocks, *head(96))


def densenet() -> nn.Module:
    blocks = [
        Dense(nn.BatchNorm2d(w), nn.ReLU(), nn.Conv2d(w, 16, 3, padding=1))
        for w in range(32, 96, 16)
    ]
    return nn.Sequential(*conv(3, 32, 3, 2), *blocks, *head(96))


def squeezenet() -> nn.Module:
    fires = [
        nn.Sequential(
            nn.Conv2d(64, 16, 1),
            nn.ReLU(),
            Branches(nn.Conv2d(16, 32, 1), nn.Conv2d(16, 32, 3, padding=1)),
        )
        for _ in range(3)
    ]
    return nn.Sequential(*conv(3, 64, 3, 2), *fires, *head(64))


def mobilenet() -> nn.Module:
    layers = conv(3, 16, 3, 2, act=nn.ReLU6)
    for a, b in ((16, 32), (32, 64), (64, 128)):
        layers += [*conv(a, a, 3, 2, a, act=nn.ReLU6), *conv(a, b, 1, act=nn.ReLU6)]
    return nn.Sequential(*layers, *head(128))


def efficientnet() -> nn.Module:
    block = [
        Residual(
            *conv(24, 96, 1, act=nn.SiLU),
            *conv(96, 96, 5, 1, 96, nn.SiLU),
            Gate(96),
            *conv(96, 24, 1)[:2],
        )
        for _ in range(3)
    ]
    return nn.Sequential(*conv(3, 24, 3, 2, act=nn.SiLU), *block, *head(24))


def inception() -> nn.Module:
    mixed = Branches(
        nn.Sequential(*conv(32, 16, 1)), nn.Sequential(*conv(32, 16, 1), *conv(16, 32)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), *conv(32, 16, 1)),
    )  # fmt: skip
    return nn.Sequential(*conv(3, 32, 3, 2), mixed, *conv(64, 64), *head(64))


def convnext() -> nn.Module:
    blocks = [
        Residual(
            nn.Conv2d(48, 48, 7, padding=3, groups=48), nn.GroupNorm(1, 48), nn.Conv2d(48, 192, 1), nn.GELU(),
            nn.Conv2d(192, 48, 1),
        )
        for _ in range(3)
    ]  # fmt: skip
    return nn.Sequential(nn.Conv2d(3, 48, 4, 4), *blocks, *head(48))


def autoencoder() -> nn.Module:
    down = [nn.Conv2d(3, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU()]
    up = [nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1)]
    return nn.Sequential(*down, *up, *head(16))


def discriminator() -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(a, b, 4, 2, 1), nn.InstanceNorm2d(b, affine=True), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, *head(128))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 64 * 64, 256),
        nn.GELU(),
        nn.Linear(256, 256),
        nn.GELU(),
        nn.Linear(256, CLASSES),
    )


def mixer() -> nn.Module:
    def block() -> list[nn.Module]:
        tokens = Transposed(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)))
        return [
            Residual(nn.LayerNorm(96), tokens),
            Residual(nn.LayerNorm(96), nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96)),
        ]

    return nn.Sequential(Patches(96), *block(), *block(), Mean(), nn.Linear(96, CLASSES))


def encoder(layers: int = 3, **options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(96, 4, 384, batch_first=True, **options)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def vit() -> nn.Module:
    return nn.Sequential(
        Patches(96), encoder(norm_first=True, activation="gelu"), Mean(), nn.Linear(96, CLASSES)
    )


def text_encoder() -> nn.Module:
    return nn.Sequential(nn.Embedding(2000, 96), encoder(), Mean(), nn.Linear(96, CLASSES))


def lstm() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(2000, 64), Last(nn.LSTM(64, 128, 2, batch_first=True)), nn.Linear(128, CLASSES)
    )


def bidirectional() -> nn.Module:
    lstm = nn.LSTM(64, 128, 2, batch_first=True, bidirectional=True)
    return nn.Sequential(nn.Embedding(2000, 64), Last(lstm), nn.Linear(256, CLASSES))


def gru() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(2000, 64), Last(nn.GRU(64, 128, batch_first=True)), nn.Linear(128, CLASSES)
    )


def temporal() -> nn.Module:
    blocks = [
        nn.Sequential(nn.Conv1d(64, 64, 3, padding=2**n, dilation=2**n), nn.ReLU())
        for n in range(4)
    ]
    return nn.Sequential(
        nn.Embedding(2000, 64), Transposed(nn.Sequential(*blocks)), Mean(), nn.Linear(64, CLASSES)
    )


def volume() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.AdaptiveAvgPool3d(1),
        nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


IMAGES = (
    alexnet, vgg, resnet18, wide_resnet, densenet, squeezenet, mobilenet, efficientnet, inception, convnext,
    autoencoder, discriminator, mlp, mixer, vit, volume,
)  # fmt: skip
TEXTS = text_encoder, lstm, bidirectional, gru, temporal
HUGGING_FACE = "bert", "distilbert", "gpt2", "llama", "t5"


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def _task(model: Callable[[], nn.Module], text: bool, *, seed: int) -> Task:
    data = Random((128,), 2000) if text else Random((3, 64, 64))
    return Task(model=model, loss=_loss, train=data, batch_size=32)


def _hugging_face(kind: str, *, seed: int) -> Task:
    """A small model of the package transformers, with random weights, that computes its own loss."""
    import transformers as hf

    small = {
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": 2000,
    }
    made: dict[str, Callable[[], nn.Module]] = {
        "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**small, intermediate_size=384)),
        "distilbert": lambda: hf.DistilBertForMaskedLM(
            hf.DistilBertConfig(vocab_size=2000, dim=96, n_layers=3, n_heads=4, hidden_dim=384)
        ),
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=2000, n_embd=96, n_layer=3, n_head=4)),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**small, intermediate_size=256, num_key_value_heads=2)),
        "t5": lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=2000, d_model=96, d_kv=24, d_ff=384, num_layers=2, num_heads=4,
                        decoder_start_token_id=0)
        ),
    }  # fmt: skip

    def samples() -> list[dict[str, Tensor]]:
        found = [torch.randint(2000, (128,)) for _ in range(SAMPLES)]
        return [{"input_ids": tokens, "labels": tokens} for tokens in found]

    return Task(model=made[kind], train=samples(), batch_size=16)


for _model in IMAGES + TEXTS:
    globals()[f"task_{_model.__name__}"] = partial(_task, _model, _model in TEXTS)
for _kind in HUGGING_FACE:
    globals()[f"task_{_kind}"] = partial(_hugging_face, _kind)
