"""A model whose time is known: cut into two stages, each sleeps as long in every forward."""

import time

from torch import Tensor, nn

SECONDS = 0.03


class Sleeping(nn.Module):
    """Passes its input on after a while."""

    def __init__(self, train_s: float, eval_s: float) -> None:
        super().__init__()
        self.train_s = train_s
        self.eval_s = eval_s

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.train_s if self.training else self.eval_s)
        return x


def build(size: tuple[int, int], classes: int, train_s: float = SECONDS, eval_s: float = SECONDS) -> nn.Sequential:
    """Seven layers, as many as `small_model` has."""
    height, width = size
    between = [nn.Identity() for _ in range(3)]
    return nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=1), Sleeping(train_s, eval_s), *between[:2], Sleeping(train_s, eval_s), nn.Flatten(),
        nn.Linear(height * width, classes),
    )  # fmt: skip
