"""Models of torchvision, timm and transformers, as small as they come, and data of the shapes that they take."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.zoo import torchvision_shim

SAMPLES = 12
CLASSES = 7
WORDS = 50
_TEXT = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_WIDE = {"intermediate_size": 32}


def _torchvision(name: str, size: int = 40, **options: Any) -> Callable[[], tuple[nn.Module, int]]:
    return lambda: (getattr(torchvision_shim.models, name)(num_classes=CLASSES, **options), size)


def _timm(name: str, size: int = 40, **options: Any) -> Callable[[], tuple[nn.Module, int]]:
    def build() -> tuple[nn.Module, int]:
        import timm

        return timm.create_model(name, num_classes=CLASSES, **options), size

    return build


def _transformers(name: str, size: int = 0, **options: Any) -> Callable[[], tuple[nn.Module, int]]:
    def build() -> tuple[nn.Module, int]:
        import transformers

        prefix = name.split("For")[0].removesuffix("LMHeadModel")
        config = getattr(transformers, f"{prefix}Config")(num_labels=CLASSES, tie_word_embeddings=False, **options)
        return getattr(transformers, name)(config), size

    return build


_VIT = {"image_size": 16, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_PATCHES = {"image_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
MODELS = {
    "torchvision/resnet18": _torchvision("resnet18"),
    "torchvision/mobilenet_v3_small": _torchvision("mobilenet_v3_small"),
    "torchvision/squeezenet1_1": _torchvision("squeezenet1_1"),
    "torchvision/shufflenet_v2_x0_5": _torchvision("shufflenet_v2_x0_5"),
    "torchvision/mnasnet0_5": _torchvision("mnasnet0_5"),
    "torchvision/googlenet": _torchvision("googlenet", init_weights=False),
    "torchvision/VisionTransformer": _torchvision("VisionTransformer", 16, **_PATCHES),
    "torchvision/SwinTransformer": _torchvision(
        "SwinTransformer", 16, patch_size=[2, 2], embed_dim=8, depths=[2, 1], num_heads=[1, 2], window_size=[4, 4]
    ),
    "timm/test_resnet": _timm("test_resnet"),
    "timm/test_vit": _timm("test_vit", 32, img_size=32),
    "timm/test_efficientnet": _timm("test_efficientnet"),
    "timm/test_convnext": _timm("test_convnext"),
    "timm/test_nfnet": _timm("test_nfnet"),
    "timm/test_byobnet": _timm("test_byobnet"),
    "transformers/GPT2LMHeadModel": _transformers("GPT2LMHeadModel", vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2),
    "transformers/BertForSequenceClassification": _transformers("BertForSequenceClassification", **_TEXT, **_WIDE),
    "transformers/RobertaForSequenceClassification": _transformers(
        "RobertaForSequenceClassification", **_TEXT, **_WIDE
    ),
    "transformers/DistilBertForSequenceClassification": _transformers(
        "DistilBertForSequenceClassification", vocab_size=WORDS, dim=16, n_layers=2, n_heads=2, hidden_dim=32
    ),
    "transformers/ElectraForSequenceClassification": _transformers(
        "ElectraForSequenceClassification", embedding_size=8, **_TEXT, **_WIDE
    ),
    "transformers/LlamaForCausalLM": _transformers("LlamaForCausalLM", **_TEXT, **_WIDE),
    "transformers/MistralForCausalLM": _transformers("MistralForCausalLM", num_key_value_heads=1, **_TEXT, **_WIDE),
    "transformers/MixtralForCausalLM": _transformers(
        "MixtralForCausalLM", num_key_value_heads=1, num_local_experts=2, **_TEXT, **_WIDE
    ),
    "transformers/ViTForImageClassification": _transformers("ViTForImageClassification", 16, **_VIT, **_WIDE),
    "transformers/ResNetForImageClassification": _transformers(
        "ResNetForImageClassification", 40, embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 2, 1]
    ),
}


def build(name: str) -> nn.Module:
    """The model."""
    return MODELS[name]()[0]


class Pairs:
    """A split: an input, or a dict of them, and a target."""

    def __init__(self, inputs: Tensor | Mapping[str, Tensor], targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        if isinstance(self.inputs, Mapping):
            return {name: tensor[index] for name, tensor in self.inputs.items()}, self.targets[index]
        return self.inputs[index], self.targets[index]


def data(name: str) -> SimpleNamespace:
    """Images, or words of sentences of different lengths; labels, or the words themselves."""
    generator = torch.Generator().manual_seed(5)
    size = MODELS[name]()[1]
    labels = torch.arange(SAMPLES) % CLASSES
    if size:
        images = torch.randn(SAMPLES, 3, size, size, generator=generator)
        return SimpleNamespace(train=Pairs(images, labels), eval=Pairs(images[:5], labels[:5]))
    words = torch.randint(3, WORDS, (SAMPLES, 9), generator=generator)
    mask = (torch.arange(9) < torch.randint(4, 10, (SAMPLES, 1), generator=generator)).long()
    targets = labels if "Classification" in name else words
    inputs = {"input_ids": words, "attention_mask": mask}
    return SimpleNamespace(train=Pairs(inputs, targets), eval=Pairs(inputs, targets))
