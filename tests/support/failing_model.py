"""A model whose middle layer raises, ends its process or hangs after some training, for tests of failures."""

import os
import time

from torch import Tensor, nn


class Failing(nn.Module):
    """Passes its input on, and fails at the 21st training forward: "raise", "exit", or anything else to hang."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.training and self.calls > 20:
            if self.how == "raise":
                raise ValueError("this layer gave up\nand says so in two lines")
            if self.how == "exit":
                os._exit(7)
            time.sleep(1000)
        return x


def build(how: str, width: int = 8) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), Failing(how),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip
