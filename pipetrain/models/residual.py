"""Residual blocks as layers that relay the shortcut, so that a stage may end inside a block."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override


class Open(nn.Module):
    """The first layer of a block: x to (body(x), x)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.body(x), x


class Relay(nn.Module):
    """A middle layer of a block: (y, skip) to (body(y), skip)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    @override
    def forward(self, y: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        return self.body(y), skip


class Close(nn.Module):
    """The last layer of a block: (y, skip) to relu(body(y) + shortcut(skip))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    @override
    def forward(self, y: Tensor, skip: Tensor) -> Tensor:
        return F.relu(self.body(y) + self.shortcut(skip))


def block_layers(units: Sequence[tuple[nn.Module, nn.Module]], shortcut: nn.Module | None) -> list[nn.Module]:
    """The layers of one block: a (convolution, norm) pair each, the shortcut in the last; at least two pairs."""
    *before, (conv, norm) = units
    bodies = [nn.Sequential(*unit, nn.ReLU()) for unit in before]
    close = Close(nn.Sequential(conv, norm), nn.Identity() if shortcut is None else shortcut)
    return [Open(bodies[0]), *map(Relay, bodies[1:]), close]
