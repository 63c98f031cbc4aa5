"""Which models and data sets go together."""

import pytest

from pipetrain.config.choices import names_of
from pipetrain.config.composition import composed
from pipetrain.config.tasks import task_of
from pipetrain.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["model=resnet20", "dataset=austen"],
            "model=resnet20 dataset=austen: the model is for image classification, and the data set for language "
            "modeling; data sets for image classification are cifar10, ",
        ),
        (["model=gpt", "dataset=multi30k"], "the model is for language modeling, and the data set for translation; "),
        (["model=s2vt", "dataset=cifar10"], "data sets for video captioning are msvd, synthetic_moving_shapes$"),
    ],
)
def test_model_and_data_set_of_different_tasks_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        composed(words)


@pytest.mark.parametrize(
    "words",
    [
        ["model=residual_lstm", "dataset=imdb"],
        ["model=lenet5", "dataset=austen", "dataset._target_=mine.images"],
        ["model=lenet5", "model._target_=mine.model", "dataset=austen"],
        ["model=custom", "model._target_=mine.model", "dataset=austen"],
        ["model=lenet5", "dataset=custom", "dataset._target_=mine.images"],
    ],
)
def test_model_and_data_set_of_one_task_or_of_a_users_own_pass(words):
    assert composed(words).train.epochs


def test_every_model_has_the_task_of_a_data_set():
    assert {task_of("model", name) for name in names_of("model")} == {
        task_of("dataset", name) for name in names_of("dataset")
    }
