"""The loss, tried on two samples before a run."""

from types import SimpleNamespace

import pytest
import torch
from support.one_run import prepared
from support.refusals import assert_refused
from support.worker_pool import settings
from torch import nn

from pipetrain.engine.losses import CrossEntropy, TokenCrossEntropy
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.components.data import build_data
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
    notes = check_loss(
        chosen, training_dry_run(data, chain), loss or CrossEntropy(), build_metrics(chosen.metrics), decoded
    )
    assert chain.module.training
    assert all(torch.equal(before[name], value) for name, value in chain.module.state_dict().items())
    return notes


def test_known_loss_and_metrics_pass_and_leave_model_unchanged():
    tried()
    tried(metrics={"loss": 1, "top1": 50}, best="top1")
    tried(metrics={"bleu": 25}, best="bleu", decoded=["bleu"])


class HitLoss(nn.CrossEntropyLoss):
    """A loss with a metric that is given."""

    def __init__(self, measured):
        super().__init__()
        self.measured = measured

    def metrics(self, outputs, targets):
        return {"found": self.measured(outputs, targets)}


class Named(nn.CrossEntropyLoss):
    """A loss whose metric has this name."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def metrics(self, _outputs, targets):
        return {self.name: len(targets)}


class Negative(nn.CrossEntropyLoss):
    def count(self, targets):
        return -len(targets)


OWN = ("Ordered", "PerClass", "no_metric", "Undirected", "Locked")
FURTHER = {name: {"_target_": f"support.own_metrics.{name}"} for name in OWN}
LOSS = r"^loss\._target_=.*"
REFUSED = {
    LOSS + r"targets float64 \(2,\) of the data set": {"target": torch.Tensor.double},
    LOSS + r"targets int32 .*; return the targets as int64$": {"target": torch.Tensor.int},
    LOSS + r"out of bounds; for outputs float32 \(2, 4\)": {"target": lambda labels: labels + 10},
    LOSS + r"targets int64 \(2, 1\) of the data set$": {"target": lambda labels: labels[:, None]},
    LOSS + "`metrics` of the loss: found=0.5": {"loss": HitLoss(lambda _outputs, targets: 0.5 * len(targets))},
    LOSS + "found is 1 for 2 samples together, but 1, 1 for": {"loss": HitLoss(lambda *_: torch.tensor(1))},
    LOSS + "found=-2 .*docs/metrics.md": {"loss": HitLoss(lambda _outputs, targets: -len(targets))},
    LOSS + "found=4 .*out of 2": {"loss": HitLoss(lambda _outputs, targets: 2 * len(targets))},
    LOSS + "found=nan": {"loss": HitLoss(lambda *_: torch.tensor(float("nan")))},
    LOSS + r"found is a tensor of shape \(2,\)": {"loss": HitLoss(lambda _outputs, targets: targets * 0)},
    LOSS + r"mean, .*not a tensor of shape \(2,\)": {"loss": nn.CrossEntropyLoss(reduction="none")},
    LOSS + "mean, .*not a float": {"loss": lambda *_: 1.0},
    LOSS + "no gradient": {"loss": lambda outputs, _: outputs.detach().sum()},
    LOSS + "no gradient flows": {"loss": lambda outputs, targets: (outputs.argmax(1) != targets).sum()},
    LOSS + r"not \(2, 4\) and \(2,\); loss=cross_entropy": {"loss": TokenCrossEntropy()},
    "'loss' cannot name a metric": {"loss": Named("loss")},
    "'perplexity' cannot name a metric": {"loss": Named("perplexity")},
    "'s' cannot name a metric": {"loss": Named("s")},
    "3 cannot name a metric": {"loss": Named(3)},
    "`count` of the loss returned -2": {"loss": Negative()},
    "^dataset: `decoding.metrics`: top1: ": {"decoded": ["bleu", "top1"]},
    r"^metrics\.top1: evaluations already have": {"top1": FURTHER["Ordered"]},
    r"^metrics\.f1: compute.* not a tensor of shape \(4,\)": {"f1": FURTHER["PerClass"]},
    r"^metrics\.f1\._target_=support.*: returned str": {"f1": FURTHER["no_metric"]},
    r"metrics\.f1\.higher_is_better=true or false$": {"f1": FURTHER["Undirected"]},
    r"^metrics\.m: cannot be copied .*TypeError": {"m": FURTHER["Locked"]},
    "train.target=.*: no metric top9; did you mean top1": {"metrics": {"top9": 50}},
    "no metric accuracy; an evaluation gives loss$": {"metrics": {"accuracy": 50}, "loss": nn.MultiMarginLoss()},
}


@pytest.mark.parametrize("named", REFUSED)
def test_loss_or_metric_that_cannot_work_is_refused(named):
    assert_refused(named, tried, **REFUSED[named])


def test_whole_numbers_are_hits_whatever_their_type():
    tried(loss=HitLoss(lambda outputs, targets: (outputs.argmax(1) == targets).float().sum()))
    tried(loss=HitLoss(lambda outputs, targets: float((outputs.argmax(1) == targets).sum())))


def test_further_metric_can_select_best_checkpoint_and_target():
    assert tried(metrics={"error": 1}, best="error", error=FURTHER["Ordered"]) == []
    tried(f1={**FURTHER["Undirected"], "higher_is_better": True})


@pytest.mark.slow  # torchmetrics takes seconds to import
def test_torchmetrics_metric_for_other_outputs_is_refused():
    f1 = {"_target_": "torchmetrics.classification.BinaryF1Score"}
    assert_refused(r"^metrics\.f1: .*same shape.*; for outputs float32 \(2, 4\)", tried, f1=f1)


def test_metric_that_needs_more_than_two_samples_is_noted():
    (note,) = tried(many={"_target_": "support.own_metrics.NeedsThree"})
    assert note.startswith("warning: metrics.many: ValueError: at least three samples")


def test_parameters_of_a_loss_are_noted_as_nobody_trains_them():
    class Scaled(nn.CrossEntropyLoss):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

    (note,) = tried(loss=Scaled())
    assert note.startswith("warning: the loss has parameters, which stay unchanged")


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
    assert build_loss(chosen.loss, SimpleNamespace(padding=3)).ignore_index == expected


def test_class_weight_list_becomes_a_tensor_in_the_loss():
    weighted = {"_target_": "torch.nn.CrossEntropyLoss", "weight": [1, 0.5]}
    assert torch.equal(build_loss(settings("gpipe", loss=weighted).loss, None).weight, torch.tensor([1.0, 0.5]))
