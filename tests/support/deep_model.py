"""A model of eight layers, one for each of as many stages."""

from torch import nn

from pipetrain.engine.models.chain import LayerChain


def build(channels: int, classes: int) -> LayerChain:
    width = 6
    module = nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1),
        nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1)),
        nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1, bias=False)),
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, width)),
        nn.Sequential(nn.Tanh(), nn.Linear(width, width)),
        nn.Sequential(nn.Dropout(0.1), nn.Linear(width, width)),
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)),
        nn.Linear(width, classes),
    )
    return LayerChain(module, list(module))


def bounds() -> list[tuple[int, int]]:
    """A layer for each stage."""
    return [(r, r + 1) for r in range(8)]
