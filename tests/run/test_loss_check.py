"""The loss, tried on two samples before a run."""

import pytest
import torch
from support.worker_pool import settings
from torch import nn

from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.losses import CrossEntropy
from pipetrain.run.build import build_chain, build_data
from pipetrain.run.loss_check import check_loss
from pipetrain.run.trial import trial_of


def tried(loss=None, target=lambda labels: labels, metrics=None, best="loss", decoded=()):
    """What check_loss says of a tiny run whose labels are changed by `target`."""
    chosen: Settings = settings("gpipe", train={"target": metrics}, checkpoint={"metric": best})
    data = build_data(chosen)
    chain = build_chain(chosen.model.target, data.dataset, chosen.seed)
    samples = [(inputs, tuple(map(target, labels))) for inputs, labels in data.train.samples(0, 0, 1)]
    data.train.samples = lambda *_: iter(samples)
    before = {name: value.clone() for name, value in chain.module.state_dict().items()}
    check_loss(chosen, trial_of(data, chain), loss or CrossEntropy(), decoded)
    assert chain.module.training
    assert all(torch.equal(before[name], value) for name, value in chain.module.state_dict().items())


def test_loss_and_metrics_that_there_are_pass_and_leave_the_model_as_it_was():
    tried()
    tried(metrics={"loss": 1, "top1": 50}, best="top1")
    tried(metrics={"bleu": 25}, best="bleu", decoded=["bleu"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (torch.Tensor.double, r"loss\._target_=.*expected target dtype .* targets float64 \(2,\) of the data set"),
        (lambda labels: labels + 10, r"loss\._target_=.*out of bounds; for outputs float32 \(2, 4\) of the model"),
        (lambda labels: labels[:, None], r"loss\._target_=.*targets int64 \(2, 1\)"),
    ],
)
def test_targets_that_the_loss_does_not_take_are_refused_with_both_sides(target, message):
    with pytest.raises(ConfigError, match=message):
        tried(target=target)


def test_best_checkpoint_by_a_metric_that_the_loss_does_not_have_is_refused():
    with pytest.raises(ConfigError, match=r"^checkpoint.metric=top9: no metric top9; did you mean top1\?"):
        tried(best="top9")


def test_metric_that_the_loss_does_not_have_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"train.target=.*: no metric top9; did you mean top1\?"):
        tried(metrics={"top9": 50})
    with pytest.raises(ConfigError, match=r"no metric accuracy; an evaluation gives loss$"):
        tried(loss=nn.MultiMarginLoss(), metrics={"accuracy": 50})
