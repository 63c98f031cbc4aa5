"""The loss, tried on two samples before a run."""

from types import SimpleNamespace

import pytest
import torch
from support.one_run import prepared
from support.worker_pool import settings
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.losses import CrossEntropy, TokenCrossEntropy
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.components.data import (
    build_data,
)
from pipetrain.runner.training.components.dry_run import training_dry_run
from pipetrain.runner.training.components.loss import build_loss, build_metrics, check_loss, whole_and_halves
from pipetrain.runner.training.components.model import build_model


def tried(loss=None, target=lambda labels: labels, metrics=None, best="loss", decoded=(), **further):
    """What check_loss says of a tiny run whose labels are changed by `target`."""
    chosen: Settings = settings("gpipe", train={"target": metrics}, checkpoint={"metric": best}, metrics=further)
    data = build_data(chosen)
    chain = build_model(chosen, data.dataset)
    samples = [(inputs, tuple(map(target, labels))) for inputs, labels in data.train.samples(0, 0, 1)]
    data.train.samples = lambda *_: iter(samples)
    before = {name: value.clone() for name, value in chain.module.state_dict().items()}
    notes = check_loss(chosen, training_dry_run(data, chain), loss or CrossEntropy(), build_metrics(chosen), decoded)
    assert chain.module.training
    assert all(torch.equal(before[name], value) for name, value in chain.module.state_dict().items())
    return notes


def test_known_loss_and_metrics_pass_and_leave_model_unchanged():
    tried()
    tried(metrics={"loss": 1, "top1": 50}, best="top1")
    tried(metrics={"bleu": 25}, best="bleu", decoded=["bleu"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            torch.Tensor.double,
            r"loss\._target_=.*expected target dtype .* targets float64 \(2,\) of the data set; return",
        ),
        (torch.Tensor.int, r"loss\._target_=.* targets int32 \(2,\) of the data set; return the targets as int64$"),
        (lambda labels: labels + 10, r"loss\._target_=.*out of bounds; for outputs float32 \(2, 4\) of the model"),
        (lambda labels: labels[:, None], r"loss\._target_=.*targets int64 \(2, 1\) of the data set$"),
    ],
)
def test_targets_unfit_for_loss_are_refused_with_both_shapes(target, message):
    with pytest.raises(ConfigError, match=message):
        tried(target=target)


def own(name):
    return {"_target_": f"support.own_metrics.{name}"}


class HitLoss(nn.CrossEntropyLoss):
    """A loss with a metric that is given."""

    def __init__(self, measured):
        super().__init__()
        self.measured = measured

    def metrics(self, outputs, targets):
        return {"found": self.measured(outputs, targets)}


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        (lambda _outputs, targets: 0.5 * len(targets), r"found=0.5 .*out of 1"),
        (
            lambda *_: torch.tensor(1),
            r"found is 1 for 2 samples together, but 1, 1 for each alone, so it is not a number",
        ),
        (
            lambda _outputs, targets: -len(targets),
            r"found=-2 is not a number of hits out of 2; a metric .* docs/metrics.md",
        ),
        (lambda _outputs, targets: 2 * len(targets), r"found=4 .*out of 2"),
        (lambda *_: torch.tensor(float("nan")), r"found=nan .*out of 2"),
        (lambda _outputs, targets: targets * 0, r"found is a tensor of shape \(2,\), not a number of hits"),
    ],
)
def test_metric_of_a_loss_that_is_no_sum_of_hits_is_refused(measured, message):
    with pytest.raises(ConfigError, match=rf"^loss\._target_=.*: `metrics` of the loss: {message}"):
        tried(loss=HitLoss(measured))


def test_whole_numbers_are_hits_whatever_their_type():
    tried(loss=HitLoss(lambda outputs, targets: (outputs.argmax(1) == targets).float().sum()))
    tried(loss=HitLoss(lambda outputs, targets: float((outputs.argmax(1) == targets).sum())))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.CrossEntropyLoss(reduction="none"), r"the mean, a tensor of one element, not a tensor of shape \(2,\)"),
        (lambda *_: 1.0, r"the mean, .*not a float"),
        (
            lambda outputs, _targets: outputs.detach().sum(),
            r"_target_=.*: no gradient flows from the loss to the outputs",
        ),
        (lambda outputs, targets: (outputs.argmax(1) != targets).sum(), r"no gradient flows from the loss"),
        (TokenCrossEntropy(), r"outputs \(n, positions, vocabulary\) .*, not \(2, 4\) and \(2,\); loss=cross_entropy"),
    ],
)
def test_loss_without_mean_or_with_other_shapes_is_refused(loss, message):
    with pytest.raises(ConfigError, match=message):
        tried(loss=loss)


def test_further_metric_can_select_best_checkpoint_and_target():
    assert tried(metrics={"error": 1}, best="error", error=own("Ordered")) == []


def test_decoded_metric_with_the_name_of_one_of_the_loss_is_refused():
    with pytest.raises(ConfigError, match=r"^dataset: `decoding.metrics`: top1: evaluations already have"):
        tried(decoded=["bleu", "top1"])


def test_further_metrics_that_cannot_work_are_refused_in_words():
    with pytest.raises(ConfigError, match=r"^metrics\.top1: evaluations already have a metric of this name"):
        tried(top1=own("Ordered"))
    with pytest.raises(
        ConfigError, match=r"^metrics\.f1: compute\(\) must return a number, not a tensor of shape \(4,\)"
    ):
        tried(f1=own("PerClass"))
    with pytest.raises(
        ConfigError, match=r"^metrics\.f1\._target_=support.*: returned str, not an object with `update`"
    ):
        tried(f1=own("no_metric"))
    with pytest.raises(ConfigError, match=r"more is better; set metrics\.f1\.higher_is_better=true or false$"):
        tried(f1=own("Undirected"))
    tried(f1={**own("Undirected"), "higher_is_better": True})


@pytest.mark.slow  # torchmetrics takes seconds to import
def test_torchmetrics_metric_for_other_outputs_is_refused():
    f1 = {"_target_": "torchmetrics.classification.BinaryF1Score"}
    with pytest.raises(ConfigError, match=r"^metrics\.f1: .*same shape.*; for outputs float32 \(2, 4\) of the model"):
        tried(f1=f1)


def test_metric_that_needs_more_than_two_samples_is_noted():
    (note,) = tried(many=own("NeedsThree"))
    assert note.startswith("warning: metrics.many: ValueError: at least three samples")


def test_unknown_loss_metric_is_refused_with_nearest():
    with pytest.raises(ConfigError, match=r"train.target=.*: no metric top9; did you mean top1\?"):
        tried(metrics={"top9": 50})
    with pytest.raises(ConfigError, match=r"no metric accuracy; an evaluation gives loss$"):
        tried(loss=nn.MultiMarginLoss(), metrics={"accuracy": 50})


@pytest.mark.parametrize("name", ["loss", "perplexity", "s", 3])
def test_loss_metric_named_like_another_number_is_refused(name):
    class Named(nn.CrossEntropyLoss):
        def metrics(self, _outputs, targets):
            return {name: len(targets)}

    with pytest.raises(
        ConfigError, match=f"`metrics` of the loss: {name!r} cannot name a metric; use a string, but not loss,"
    ):
        tried(loss=Named())


def test_negative_count_of_a_loss_is_refused():
    class Negative(nn.CrossEntropyLoss):
        def count(self, targets):
            return -len(targets)

    with pytest.raises(ConfigError, match="`count` of the loss returned -2; it must be the number of items"):
        tried(loss=Negative())


def test_parameters_of_a_loss_are_noted_as_nobody_trains_them():
    class Scaled(nn.CrossEntropyLoss):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

    (note,) = tried(loss=Scaled())
    assert note.startswith("warning: the loss has parameters, which stay unchanged")


def test_metric_that_cannot_be_copied_is_refused():
    with pytest.raises(ConfigError, match=r"^metrics\.m: cannot be copied for an evaluation: TypeError"):
        tried(m=own("Locked"))


def in_batch(outputs, _targets):
    """In-batch negatives."""
    return nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


class Decorrelated(nn.Module):
    """Needs two samples at least."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, affine=False)

    def forward(self, outputs, _targets):
        return (self.norm(outputs).T @ self.norm(outputs) / len(outputs) - torch.eye(4)).square().sum()


class Marked:
    """The mean over what the targets mark."""

    def __call__(self, outputs, targets):
        return (outputs.sum(1) * targets).sum() / targets.sum()


class CountedMarks(Marked):
    def count(self, targets):
        return targets.sum()


@pytest.mark.parametrize(
    ("loss", "samples", "noticed"),
    [
        (in_batch, 8, True),
        (in_batch, 2, True),
        (Decorrelated(), 8, True),
        (Decorrelated(), 2, False),  # cannot be told
        (lambda outputs, _: (outputs - outputs.mean(0)).square().mean(), 7, True),
        (lambda outputs, _: outputs.std(0).mean(), 2, True),  # NaN of one sample
        (lambda outputs, _: outputs.sum(), 8, True),
        (Marked(), 8, True),
        (CountedMarks(), 8, False),
        (lambda outputs, targets: ((outputs.sum(1) - targets) ** 2).mean(), 7, False),
        (lambda outputs, _: nn.functional.dropout(outputs, 0.5).mean(), 8, False),
        (lambda outputs, _: outputs.mean(), 1, False),
        (nn.CrossEntropyLoss(weight=torch.tensor([0.1, 5.0, 1.0, 1.0])), 8, False),
    ],
)
def test_loss_of_halves_shows_what_microbatches_would_change(loss, samples, noticed):
    torch.manual_seed(0)
    outputs, targets = torch.randn(samples, 4), torch.tensor([0, 1, 1, 1, 0, 2, 0, 2])[:samples]
    assert (whole_and_halves(loss, (outputs,), (targets,)) is not None) == noticed


def notes(tmp_path, loss="pipetrain.engine.losses.CrossEntropy", **changes):
    train = {"batch_size": 8, **changes.pop("train", {})}
    found = prepared(tmp_path, loss={"_target_": loss}, train=train, **changes)
    return [note for note in found.notes if "halves" in note]


def test_warning_names_what_changes_the_loss_and_what_keeps_it(tmp_path):
    coupled = f"{__name__}.InBatch"
    assert notes(tmp_path) == []
    assert notes(tmp_path, coupled, eval={"batch_size": 10}) == []
    (line,) = notes(tmp_path, coupled, train={"microbatches": 2}, eval={"every_epochs": 0})
    assert "changes with train.microbatches=2: " in line
    assert "train.microbatches=1 keeps those of a minibatch together" in line
    (line,) = notes(tmp_path, coupled, eval={"batch_size": 4})
    assert "changes with eval.batch_size=4: " in line


class InBatch:
    def __call__(self, outputs, targets):
        return in_batch(outputs, targets)


@pytest.mark.parametrize(("given", "expected"), [({"ignore_index": None}, 3), ({"ignore_index": 7}, 7), ({}, None)])
def test_token_loss_ignores_dataset_padding_by_default(given, expected):
    chosen = settings("gpipe", loss={"_target_": "pipetrain.engine.losses.TokenCrossEntropy", **given})
    assert build_loss(chosen, SimpleNamespace(padding=3)).ignore_index == expected


def test_class_weight_list_becomes_a_tensor_in_the_loss():
    weighted = {"_target_": "torch.nn.CrossEntropyLoss", "weight": [1, 0.5]}
    assert torch.equal(build_loss(settings("gpipe", loss=weighted), None).weight, torch.tensor([1.0, 0.5]))
