"""What is called of a configuration that may be another's."""

import pytest

from pipetrain.config.trust import check_targets
from pipetrain.errors import ConfigError

OWN = {
    "dataset": {"_target_": "pipetrain.data.images.mnist_cifar.fashion_mnist_mini"},
    "model": {"_target_": "pipetrain.models.small_images.lenet5"},
    "loss": {"_target_": "torch.nn.CrossEntropyLoss"},
    "metrics": {"f1": {"_target_": "torchmetrics.classification.MulticlassF1Score", "num_classes": 2}},
    "optimizer": {"_target_": "os.system"},
    "phases": [{"method": {"_target_": "pipetrain.methods.lwp.LinearWeightPrediction"}}, {}],
}
SECTIONS = ("dataset", "model", "loss", "metrics", "phases")


def test_targets_that_the_choices_name_are_called_unasked():
    check_targets(OWN, SECTIONS, asked=(), where="config.yaml")


@pytest.mark.parametrize(
    ("change", "setting", "path"),
    [
        ({"model": {"_target_": "mylib.build"}}, "model._target_", "mylib.build"),
        ({"dataset": {"_target_": "torch.load"}}, "dataset._target_", "torch.load"),
        # a path below the package may lead out of it again
        ({"model": {"_target_": "pipetrain.run.trainer.time"}}, "model._target_", "pipetrain.run.trainer.time"),
        ({"model": {"_target_": "pipetrain.cli.main"}}, "model._target_", "pipetrain.cli.main"),
        ({"loss": {"_target_": "torch.nn.Module"}}, "loss._target_", "torch.nn.Module"),
        ({"metrics": {"f1": {"_target_": "mylib.F1"}}}, "metrics.f1._target_", "mylib.F1"),
        ({"metrics": {"f1": {"_target_": "torchmetrics.Metric"}}}, "metrics.f1._target_", "torchmetrics.Metric"),
        ({"model": {**OWN["model"], "size": {"_target_": "x.y"}}}, "model.size._target_", "x.y"),
        ({"model": {**OWN["model"], "size": [0, {"_target_": "x.y"}]}}, "model.size[1]._target_", "x.y"),
        ({"phases": [{}, {"schedule": {"_target_": "mylib.S"}}]}, "phases[1].schedule._target_", "mylib.S"),
    ],
)  # fmt: skip
def test_untrusted_target_is_named_with_allowing_flag(change, setting, path):
    message = f"config.yaml: {setting}={path} is not pipetrain's own code, and would be called; if you trust it, add"
    with pytest.raises(ConfigError) as caught:
        check_targets({**OWN, **change}, SECTIONS, asked=(), where="config.yaml")
    assert str(caught.value) == f"{message} --trust"
    check_targets({**OWN, **change}, SECTIONS, asked=(path,), where="config.yaml")
