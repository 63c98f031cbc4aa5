"""What every model of the house promises, whatever its family."""

import copy
import inspect
from functools import cache, partial
from itertools import product
from pathlib import Path

import pytest
import torch
from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf
from support.pipelines import assert_cuts_keep_gradients
from support.quick_cases import slow_unless
from torch import nn

from pipetrain.runner.config.choices import names_of, section
from pipetrain.zoo.models import resnet_cifar, small_images, torchvision_models
from pipetrain.zoo.torchvision_shim import models as tv

CONF = Path(__file__).parents[3] / "conf" / "model"


def accepted(name):
    return inspect.signature(get_object(section("model", name)["_target_"])).parameters


ALIKE = {"resnet32", "resnet44", "resnet224", "resnet362", "resnet101", "resnet152", "resnet152_cifar"}
"""Built as those of other depths are, which have few layers or many."""
NAMES = [name for name in names_of("model") if "channels" in accepted(name) and name not in ALIKE]
BIG = {
    "alexnet", "alexnet_cifar", "vgg16", "vgg16_cifar", "resnet50", "resnet101", "resnet152", "resnet110", "resnet224",
    "resnet362", "resnet50_cifar", "resnet152_cifar", "inception_v3",
}  # fmt: skip
PICTURES = [(1, 28, 28), (3, 32, 32), (3, 64, 64)]


def build(name, shape=(3, 32, 32), classes=10):
    known = {"channels": shape[0], "classes": classes, "size": list(shape[1:])}
    taken = accepted(name)
    return instantiate(section("model", name), **{key: value for key, value in known.items() if key in taken})


@cache
def on_meta(name, shape=(3, 32, 32), classes=10):
    """A model without values, which several tests look at."""
    with torch.device("meta"):
        return build(name, shape, classes)


@pytest.mark.parametrize(
    ("name", "shape"),
    slow_unless(lambda name, shape: shape == PICTURES[1] and name in NAMES[::2], product(NAMES, PICTURES)),
)
def test_every_model_takes_every_image_size(name, shape):
    chain = on_meta(name) if shape == PICTURES[1] else on_meta(name, shape)
    with torch.device("meta"):
        x = torch.randn(2, *shape)
        assert chain(x).shape == chain.module(x).shape == (2, 10)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BIG] + ["resnet50"])
def test_no_layer_changes_its_inputs(name):
    chain = build(name)
    tensors = (torch.randn(2, 3, 32, 32),)
    for layer in chain.layers:
        before = [tensor.clone() for tensor in tensors]
        outputs = layer(*tensors)
        assert all(map(torch.equal, tensors, before))
        tensors = outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize("name", NAMES)
def test_no_activation_works_in_place(name):
    chain = on_meta(name)
    parts = [part for module in (chain.module, *chain.layers) for part in module.modules()]
    assert not any(getattr(part, "inplace", False) for part in parts)


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "resnet50", "resnet18_cifar"])
def test_training_through_the_layers_equals_training_the_module(name):
    torch.manual_seed(0)
    chain = build(name)
    x = torch.randn(2, 3, 32, 32)
    plain = copy.deepcopy(chain.module)
    for part in plain.modules():
        if hasattr(part, "inplace"):
            part.inplace = True  # as torchvision has it
    for model in (plain, chain):
        model(x).square().sum().backward()
    weights, expected = (list(module.parameters()) for module in (chain.module, plain))
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(weights, expected, strict=True))
    assert all(map(torch.equal, chain.module.buffers(), plain.buffers()))


@pytest.mark.parametrize("width", [8, 16])
def test_group_norm_makes_a_sample_independent_of_its_minibatch(width):
    torch.manual_seed(0)
    chain = resnet_cifar.build(depth=20, channels=1, classes=10, width=width, norm="group")
    x = torch.randn(3, 1, 28, 28)
    alone = torch.cat([chain(sample[None]) for sample in x])
    torch.testing.assert_close(chain(x), alone)
    groups = [part.num_groups for part in chain.module.modules() if isinstance(part, nn.GroupNorm)]
    assert groups == [max(1, times * width // 16) for times in [1] * 7 + [2] * 6 + [4] * 6]
    assert not list(chain.module.buffers())


@pytest.mark.parametrize(
    "name", ["resnet20", "resnet18", pytest.param("resnet50", marks=pytest.mark.slow), "resnet18_cifar"]
)
def test_cuts_inside_residual_blocks_do_not_change_the_gradients(name):
    torch.manual_seed(0)
    assert_cuts_keep_gradients(build(name), torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", 32),
        ("resnet50", 32),
        *(pytest.param(*big, marks=pytest.mark.slow) for big in (("alexnet", 64), ("vgg16", 32))),
    ],
)
def test_torchvision_models_match_in_weights_and_outputs(name, size):
    torch.manual_seed(3)
    theirs = getattr(tv, name)(weights=None, num_classes=10).eval()
    torch.manual_seed(3)
    chain = build(name)
    chain.module.eval()
    for layer in chain.layers:
        layer.eval()
    mine, other = chain.module.state_dict(), theirs.state_dict()
    assert list(mine) == list(other)
    assert all(torch.equal(mine[key], other[key]) for key in mine)
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        assert torch.equal(chain(x), theirs(x))
        assert torch.equal(chain.module(x), theirs(x))


IMAGENET = ((3, 224, 224), 1000)


@pytest.mark.parametrize(
    ("name", "form", "parameters", "layers", "weight_layers"),
    [
        ("alexnet", IMAGENET, 61_100_840, 12, 8),
        ("vgg16", IMAGENET, 138_357_544, 22, 16),
        ("resnet18", IMAGENET, 11_689_512, 19, 18),
        ("resnet34", IMAGENET, 21_797_672, 35, 34),
        ("resnet50", IMAGENET, 25_557_032, 51, 50),
        ("resnet101", IMAGENET, 44_549_160, 102, 101),
        ("resnet152", IMAGENET, 60_192_808, 153, 152),
        ("googlenet", IMAGENET, 6_624_904, 17, 13),
        ("inception_v3", IMAGENET, 23_834_568, 19, 17),
        ("resnet18_cifar", (), 11_173_962, 18, 18),
        ("resnet50_cifar", (), 23_520_842, 50, 50),
        ("resnet152_cifar", (), 58_156_618, 152, 152),
        ("resnet20", (), 269_722, 20, 20),
        ("alexnet_cifar", (), 23_296_074, 12, 8),
        ("vgg16_cifar", (), 15_253_578, 22, 16),
    ],
)
def test_sizes_are_the_published_ones(name, form, parameters, layers, weight_layers):
    chain = on_meta(name, *form)
    assert sum(weight.numel() for weight in chain.module.parameters()) == parameters
    assert (len(chain), len(chain.weight_layers())) == (layers, weight_layers)


@pytest.mark.parametrize(("depth", "units"), [(18, 41), (50, 107), (152, 311)])
def test_small_image_resnets_have_known_units_and_other_first_convolutions_alone(depth, units):
    chain = on_meta(f"resnet{depth}_cifar")
    with torch.device("meta"):
        theirs = getattr(tv, f"resnet{depth}")(weights=None, num_classes=10)
    # a weight and its bias are one unit
    assert sum(1 for part in chain.module.modules() if next(part.parameters(recurse=False), None) is not None) == units
    mine, other = chain.module.state_dict(), theirs.state_dict()
    assert list(mine) == list(other)
    assert [key for key in mine if mine[key].shape != other[key].shape] == ["conv1.weight"]


def test_small_image_stem_keeps_size_and_other_initial_weights():
    torch.manual_seed(3)
    theirs = tv.resnet18(weights=None, num_classes=10).state_dict()
    torch.manual_seed(3)
    chain = torchvision_models.resnet_cifar(18, channels=3, classes=10)
    mine = chain.module.state_dict()
    assert [key for key in mine if mine[key].shape != theirs[key].shape or not torch.equal(mine[key], theirs[key])] == [
        "conv1.weight"
    ]
    stem = chain.module.conv1
    assert (stem.kernel_size, stem.stride, stem.padding, stem.bias) == ((3, 3), (1, 1), (1, 1), None)
    assert stem.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    assert chain.layers[0](torch.zeros(2, 3, 32, 32)).shape == (2, 64, 32, 32)
    assert torchvision_models.resnet_cifar(18, channels=1, classes=2).module.conv1.weight.shape == (64, 1, 3, 3)


def cifar_parameters(n, channels, classes):
    """The convolutions of the paper's table, two numbers per norm channel, and the last linear layer."""
    shapes = [(channels, 16)] + [(16, 16)] * 2 * n
    shapes += [(16, 32)] + [(32, 32)] * (2 * n - 1) + [(32, 64)] + [(64, 64)] * (2 * n - 1)
    return sum(9 * a * b + 2 * b for a, b in shapes) + 64 * classes + classes


@pytest.mark.parametrize(
    "depth", [20, 110, *(pytest.param(depth, marks=pytest.mark.slow) for depth in (32, 44, 56, 224, 362))]
)
def test_cifar_resnets_have_the_papers_layers_and_sizes(depth):
    chain = on_meta(f"resnet{depth}")
    parameters = sum(weight.numel() for weight in chain.module.parameters())
    assert parameters == cifar_parameters((depth - 2) // 6, channels=3, classes=10)
    assert len(chain) == len(chain.weight_layers()) == depth


@pytest.mark.parametrize(("name", "megabytes"), [("alexnet_cifar", 88.87), ("vgg16_cifar", 58.16)])
def test_zhang_and_abdelrahman_weight_memory_matches_table_9(name, megabytes):
    parts = list(on_meta(name).module.modules())
    # of VGG-16 the paper's count leaves batch norm out
    counted = [part for part in parts if not (name == "vgg16_cifar" and isinstance(part, nn.BatchNorm2d))]
    numbers = sum(weight.numel() for part in counted for weight in part.parameters(recurse=False))
    assert round(numbers * 4 / 2**20, 2) == megabytes


@pytest.mark.parametrize(("build", "width"), [(partial(resnet_cifar.build, 20), 8), (small_images.vgg16_cifar, 32)])
def test_half_width_leaves_quarter_of_weights_and_every_layer(build, width):
    with torch.device("meta"):
        half, whole = build(3, 10, width=width), build(3, 10)
    weights = [sum(weight.numel() for weight in chain.module.parameters()) for chain in (half, whole)]
    assert weights[0] / weights[1] == pytest.approx(0.25, abs=0.01)
    assert half.labels == whole.labels


def test_cifar_shortcut_subsamples_and_pads_with_zeros():
    x = torch.randn(1, 16, 8, 8)
    shortcut = resnet_cifar.Subsample(2, 16)(x)
    assert torch.equal(shortcut[:, :16], x[:, :, ::2, ::2])
    assert shortcut.shape == (1, 32, 4, 4)
    assert not shortcut[:, 16:].any()


def test_lenet5_has_the_papers_layers():
    chain = small_images.lenet5(1, 10, (28, 28))
    assert sum(weight.numel() for weight in chain.module.parameters()) == 61_706
    assert chain.labels == ["conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "fc3"]
    assert len(chain.weight_layers()) == 5


def test_first_convolution_follows_channels_and_initialization():
    torch.manual_seed(0)
    stem = torchvision_models.resnet(18, channels=1, classes=2).module.conv1
    assert stem.weight.shape == (64, 1, 7, 7)
    assert stem.bias is None
    assert stem.weight.std().item() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)
    with torch.device("meta"):
        vgg = torchvision_models.vgg16(channels=4, classes=2)
    assert vgg.module.features[0].weight.shape == (64, 4, 3, 3)
    assert isinstance(vgg.module.features[0].bias, nn.Parameter)


@pytest.mark.parametrize("path", sorted(set(CONF.glob("*.yaml")) - {CONF / "custom.yaml"}), ids=lambda path: path.stem)
def test_model_files_open_with_a_summary(path):
    package, summary, *_ = path.read_text().splitlines()
    assert package == "# @package _global_"
    assert summary.startswith("# ")
    assert len(summary) < 130


def test_custom_model_has_no_setting_but_its_target():
    assert OmegaConf.to_container(OmegaConf.load(CONF / "custom.yaml")) == {"_target_": "???"}
