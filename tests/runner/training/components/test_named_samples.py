"""Runs read samples that are dicts by their names."""

from types import SimpleNamespace

import pytest
from support.named_samples import Dicts
from support.worker_pool import settings

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.training.components.data import build_data
from pipetrain.runner.training.components.model import from_data


def test_run_reads_the_samples_by_their_names():
    dataset = {"_target_": "support.named_samples.build", "target_key": "labels", "input_key": "pixels"}
    data = build_data(settings("gpipe", dataset=dataset, train={"batch_size": 2}))
    ((inputs,), (labels,)) = next(data.train.samples(0, 0, 1))
    assert (inputs.shape, sorted(labels.tolist()), data.dataset.channels) == ((2, 3), [0, 1], 1)


def test_model_that_asks_a_dict_for_its_sizes_is_refused():
    model = Target("model", "pipetrain.zoo.models.small_images.lenet5", {})
    with pytest.raises(ConfigError, match="not a dict of pixels, mask, labels"):
        from_data(model, SimpleNamespace(train=Dicts(), eval=Dicts()))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"target_key": 7}, "target_key=7: must be a name, a list of names or null"),
        ({"target_key": []}, r"target_key=\[\]: must be a name, a list of names or null"),
        ({"input_key": "pixels"}, "input_key=pixels: requires dataset.target_key"),
    ],
)
def test_keys_that_are_no_names_are_refused(keys, message):
    with pytest.raises(ConfigError, match=rf"^dataset\.{message}"):
        settings("gpipe", dataset=keys)
