"""Small images scaled up, for models whose strides need larger ones."""

from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override


class Enlarge(nn.Module):
    """Scales an image up, bilinearly and keeping its shape, until its smaller side is `least` pixels."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least

    @override
    def forward(self, x: Tensor) -> Tensor:
        sides = x.shape[-2:]
        if min(sides) >= self.least:
            return x
        size = [round(side * self.least / min(sides)) for side in sides]
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)

    def before(self, _module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        """Does the same as a forward pre-hook of the whole model, so that it and its chain agree."""
        return self.forward(*inputs)


def enlarging(model: nn.Module, first: nn.Module, least: int) -> nn.Module:
    """The first layer of a model's chain, for images of any size; the model enlarges them, too."""
    enlarge = Enlarge(least)
    model.register_forward_pre_hook(enlarge.before)
    return nn.Sequential(enlarge, first)
