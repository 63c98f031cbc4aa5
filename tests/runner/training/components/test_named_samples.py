"""Runs read samples that are dicts by their names."""

from types import SimpleNamespace

from support.named_samples import Dicts
from support.refusals import assert_refused
from support.worker_pool import settings

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
    assert_refused("not a dict of pixels, mask, labels", from_data, model, SimpleNamespace(train=Dicts(), eval=Dicts()))
