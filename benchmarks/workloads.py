"""Workloads of the benchmarks: a model, synthetic images, and the microbatches of the synchronous rows."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset

from pipetrain.engine.models.chain import LayerChain
from pipetrain.graph.conversion import chain_of
from pipetrain.zoo import torchvision_shim
from pipetrain.zoo.models.image_layers import out_of_place
from pipetrain.zoo.models.resnet_cifar import build as resnet_cifar
from pipetrain.zoo.models.torchvision_models import alexnet


@dataclass(frozen=True)
class Workload:
    """A model and its data.

    Attributes:
        what: description of the model.
        build: builds the model.
        side: height and width of the images, in pixels.
        classes: number of classes.
        batch: number of samples in a minibatch.
        microbatches: values of N in the synchronous rows.
        lr: learning rate, low enough for all rows to train.
        rounds: default number of rounds; those of a large model take minutes each.
    """

    what: str
    build: Callable[[], LayerChain]
    side: int
    classes: int
    batch: int
    microbatches: tuple[int, ...]
    lr: float
    rounds: int = 10

    def chain(self) -> LayerChain:
        """The model, with the same initial weights at every call."""
        torch.manual_seed(0)
        return self.build()

    def pictures(self, minibatches: int) -> TensorDataset:
        """Random images and labels, the same at every call."""
        generator, count = torch.Generator().manual_seed(0), self.batch * minibatches
        images = torch.randn(count, 3, self.side, self.side, generator=generator)
        return TensorDataset(images, torch.randint(0, self.classes, (count,), generator=generator))

    @property
    def in_words(self) -> str:
        """Description of the model and a minibatch."""
        return f"{self.what}, 3x{self.side}x{self.side}, batch {self.batch}"


def _vgg16_bn() -> LayerChain:
    """torchvision's VGG-16 with batch norm; a convolution, its norm and its ReLU form one layer."""
    model = torchvision_shim.models.vgg16_bn(weights=None)
    out_of_place(model)
    layers: list[list[nn.Module]] = []
    for part in model.features:
        if isinstance(part, nn.BatchNorm2d | nn.ReLU):
            layers[-1].append(part)
        else:
            layers.append([part])
    layers += [[model.avgpool, nn.Flatten()], list(model.classifier[:3]), list(model.classifier[3:6])]
    return chain_of(nn.Sequential(*(nn.Sequential(*parts) for parts in layers), model.classifier[6]))


WORKLOADS = {
    "resnet56": Workload("ResNet-56, 0.86 M weights", lambda: resnet_cifar(56, 3, 10), 32, 10, 64, (2, 4, 8), lr=0.001),
    "alexnet": Workload("AlexNet, 61 M weights", lambda: alexnet(3, 1000), 224, 1000, 16, (2,), lr=0.001),
    "vgg16_bn": Workload("VGG-16-BN, 138 M weights", _vgg16_bn, 64, 1000, 16, (2,), lr=0.001, rounds=5),
}
