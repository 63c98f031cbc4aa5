"""Models, data sets, optimizers and schedules refuse by name a setting that cannot work."""

import re
from functools import partial

import pytest
import torch
from support.refusals import assert_refused, rows
from support.texts import prose
from torch import nn

from pipetrain.engine.errors import as_configured
from pipetrain.engine.optim.prediction import delta_rule
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.zoo.data.images.common import image_size
from pipetrain.zoo.data.images.synthetic import synthetic_images
from pipetrain.zoo.data.text.classification import Examples, TextClasses
from pipetrain.zoo.data.translation.dataset import TranslationDataset
from pipetrain.zoo.data.translation.synthetic import synthetic_en_de
from pipetrain.zoo.data.video.moving_shapes import synthetic_moving_shapes
from pipetrain.zoo.data.vocabulary import CharacterVocabulary, SentenceVocabulary, TokenizerVocabulary
from pipetrain.zoo.messages import Messages
from pipetrain.zoo.messages.bf16 import Bf16
from pipetrain.zoo.models import awd_lstm, gnmt, gpt, residual_lstm, resnet_cifar, s2vt, small_images, transformer
from pipetrain.zoo.models.torchvision_models import resnet
from pipetrain.zoo.models.torchvision_models import resnet_cifar as resnet_of_torchvision
from pipetrain.zoo.optim.lars import LARS
from pipetrain.zoo.optim.lr_schedules import Constant, Cosine, Inv, InverseSqrt, MultiStep, Polynomial, Step
from pipetrain.zoo.optim.matrices import Muon, Soap


def weights():
    return [nn.Parameter(torch.ones(2, 2))]


def soap(**options):
    section = {"_target_": "pipetrain.zoo.optim.matrices.Soap", "lr": 0.01, "clip_norm": None}
    return OptimizerSettings.of({**section, **options})


def learned(tokens="bpe", vocabulary_size=300):
    return SentenceVocabulary.learned(lambda: ["ein Hund"], tokens, vocabulary_size)


def byte_pairs(vocabulary_size):
    return TokenizerVocabulary.byte_pairs(prose(), vocabulary_size)


def halves(eval_share):
    return Examples(["a", "b"], [0, 1]).split(eval_share)


def texts(max_length):
    examples = Examples(["a", "b"], [0, 1])
    return TextClasses(examples, examples, ["x", "y"], tokens="words", vocabulary_size=None, max_length=max_length)


def translation(pairs=(("ein", "a"),), **settings):
    return TranslationDataset(pairs, pairs, **{"tokens": "words", "vocabulary_size": None, **settings})


ONE_SETTING = {
    "model": [
        (partial(awd_lstm.build, 20), {"layers": 0}, {"hidden": 0}, {"dropout": 1.0}, {"weight_drop": -0.1}),
        (partial(residual_lstm.build, 20, 6), {"hidden": 0}, {"dropout": 1}),
        (partial(s2vt.build, 6, 9), {"hidden": 0}),
        (partial(gpt.build, 9, 4), {"heads": 3}, {"layers": 0}, {"dropout": 1.0}),
        (partial(transformer.build, 12, 14), {"heads": 3}, {"layers": 0}, {"dropout": 1.0}),
        (partial(transformer.build, 12, 14), {"shared_embeddings": "both"}),
        (partial(gnmt.build, 12, 14), {"layers": 7}, {"width": 0}),
        (partial(resnet_cifar.build, 20, 3, 10), {"width": 0}, {"norm": "layer"}),
        (partial(resnet_cifar.build, channels=3, classes=10), {"depth": 21}, {"depth": 2}),
        (partial(resnet, channels=3, classes=10), {"depth": 20}),
        (partial(resnet_of_torchvision, channels=3, classes=10), {"depth": 20}),
        (partial(small_images.vgg16_cifar, 3, 10), {"width": 0}),
        (partial(small_images.lenet5, 1, 10), {"size": (8, 28)}),
    ],
    "dataset": [
        (image_size, *({"size": size} for size in (0, -1, True, [3], [3, 0], [1, 2, 3], "32", 3.5))),
        (synthetic_images, {"channels": 0}, {"classes": 0}, {"size": 0}, {"train": -1}, {"train": True}, {"eval": 1.5}),
        (synthetic_moving_shapes, {"frames": 1}),
        (synthetic_en_de, {"train": 0}, {"eval": 0}),
        (learned, {"tokens": "syllables"}, {"vocabulary_size": 100}, {"vocabulary_size": None}),
        (partial(learned, "words"), {"vocabulary_size": 4}),
        (byte_pairs, {"vocabulary_size": 200}, {"vocabulary_size": None}),
        (halves, *({"eval_share": share} for share in (0, 1, "half"))),
        (texts, {"max_length": 0}),
        (translation, {"max_length": 0}, {"batch_tokens": 0}),
    ],
    "optimizer": [
        (partial(LARS, weights()), {"trust": 0}, {"momentum": 1}),
        (partial(Soap, weights()), {"source": "third"}, {"geometry": "both"}, {"frequency": 0}),
        (partial(Muon, weights()), {"adamw_lr_scale": 0}),
        (soap, {"eps": -1}, {"betas": [2, 3]}, {"adamw_betas": [0.9, 1.0]}, {"weight_decay": -1}),
    ],
    "lr_schedule": [
        (Constant, {"unit": "minute"}, {"warmup": -1}),
        (MultiStep, {"milestones": [30, 10]}),
        (Step, {"size": 0}, {"size": True}),
        (Cosine, {"total": True}, {"total": -3}),
        (Polynomial, {"total": 0}, {"total": -3}),
        (Inv, {"gamma": 0}, {"power": -1}),
        (InverseSqrt, {"warmup": 0}),
    ],
}
"""Section -> what is built, and one setting of it for each refusal."""

SEVERAL = {
    "of 12 and 14 tokens; dataset.joint=true": [
        partial(transformer.build, 12, 14, shared_embeddings="all"),
        partial(gnmt.build, 12, 14, shared_embeddings=True),
    ],
    "of 9 and 9 tokens; dataset.joint=true": [
        partial(transformer.build, 9, 9, heads=4, shared_embeddings="all", joint_vocabulary=False)
    ],
    "lr_schedule.warmup=30: longer than the run": [partial(Inv(warmup=30).check, 5, 20)],
    "vocabulary of 2: '!', 'c'": [partial(CharacterVocabulary("ab").encode, "ac!")],
    "1 with an empty line": [partial(translation, [("", "x")])],
    "have no lines": [partial(translation, [])],
    "LARS has no prediction rule": [lambda: delta_rule(LARS(weights()))],
    "Muon has no prediction rule": [lambda: delta_rule(Muon(weights()))],
    "Soap has no prediction rule": [lambda: delta_rule(Soap(weights()))],
    r"messages\.activations=int8: must be a MessageFormat object": [partial(Messages, activations="int8")],
    r"messages\.gradients=custom: Unsized lacks `parts`, .* such as parts = 1": [
        lambda: Messages(gradients=type("Unsized", (Bf16,), {"name": "custom", "parts": None})())
    ],
}


@pytest.mark.parametrize(
    ("section", "build", "setting"),
    [
        (section, build, each)
        for section, kinds in ONE_SETTING.items()
        for build, *settings in kinds
        for each in settings
    ],
)
def test_setting_that_cannot_work_is_refused_by_name_and_value(section, build, setting):
    ((name, value),) = setting.items()
    assert_refused(re.escape(f"{section}.{name}={as_configured(value)}: "), partial(build, **setting))


@pytest.mark.parametrize(("named", "call"), rows(SEVERAL))
def test_what_does_not_go_together_is_refused(named, call):
    assert_refused(named, call)
