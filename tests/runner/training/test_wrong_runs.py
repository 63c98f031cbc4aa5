"""Runs that cannot work are refused by their settings, before they start."""

import re

import pytest
import torch
from omegaconf import OmegaConf
from support.one_run import EVEN, prepared
from support.quick_cases import every
from torch import nn
from torch.utils.data import TensorDataset

from pipetrain.engine.errors import ConfigError


def frozen(channels, classes):
    """A model without anything to train."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, classes).requires_grad_(requires_grad=False), nn.ReLU())


class Complex(nn.Module):
    """A layer with a buffer that no checkpoint holds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("phase", torch.ones(1, dtype=torch.complex128))

    def forward(self, x):
        return x


def complex_one(channels, classes):
    return nn.Sequential(Complex(), nn.Flatten(), nn.Linear(64 * channels, classes))


class Words(nn.Module):
    def forward(self, x):
        return x.flatten(1).long().clamp(0, 4)


def sparse(channels, classes):
    """A model with sparse gradients."""
    return nn.Sequential(Words(), nn.Embedding(5, 4, sparse=True), nn.Flatten(), nn.Linear(256 * channels, classes))


class Uncopied(nn.Linear):
    """A layer whose own code fails outside of its forward."""

    def __deepcopy__(self, memo):
        raise KeyError("one of a kind")


def uncopied(channels, classes):
    return nn.Sequential(nn.Flatten(), Uncopied(64 * channels, classes))


class Noisy(torch.optim.SGD):
    """Adds noise to the weights."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for weight in self.param_groups[0]["params"]:
            weight.add_(torch.randn_like(weight), alpha=1e-3)


class Growing(nn.Linear):
    """Multiplies its output with a buffer that it changes in place."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("gain", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.gain.add_(0.01)
        return super().forward(x) * self.gain


def growing(channels, classes):
    return nn.Sequential(nn.Flatten(), Growing(64 * channels, 6), Growing(6, classes))


def vectors(width=4, dtype="int64"):
    """Training samples of four numbers, evaluation samples of others."""
    labels = torch.arange(8) % 2
    train = TensorDataset(torch.zeros(8, 4), labels)
    return train, TensorDataset(torch.zeros(8, width), labels.to(getattr(torch, dtype)))


def linear():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


SHORT = {
    "FINE": "partition._target_=pipetrain.runner.partition.finegrained.FineGrained partition.stages=5",
    "HOGWILD": "method._target_=pipetrain.engine.methods.hogwild.Hogwild method.seed=3 method.mean_delay=1.5",
    "CONSTANT": "lr_schedule._target_=pipetrain.zoo.optim.lr_schedules.Constant",
    "TIED": "model._target_=support.tied_model.build",
    "MUON": "optimizer._target_=pipetrain.zoo.optim.matrices.Muon",
    "LARS": "optimizer._target_=pipetrain.zoo.optim.lars.LARS",
    "NOISY": f"optimizer._target_={__name__}.Noisy optimizer.lr=0.1",
    "TORCH": "schedule._target_=pipetrain.plugins.torch_schedules.schedules.Interleaved1F1B schedule.chunks=2",
    "VECTORS": f"dataset._target_={__name__}.vectors model._target_={__name__}.linear",
    "GROWING": f"model._target_={__name__}.growing",
    "GRADIENT": "log.staleness_gradient=true log.staleness_every_steps=2",
    "HERE": __name__,
}
"""What stands for longer words in the table."""
DEEP = {"_target_": "pipetrain.engine.schedules.one_f_one_b.OneFOneB"}

REFUSED = """\
gpipe FINE -> partition=finegrained
gpipe FINE executor.name=simulated trace=true -> trace=true
gpipe FINE executor.name=simulated train.recompute=true -> train.recompute=true
gpipe FINE executor.name=simulated train.precision=fp16 -> train.precision=fp16: partition=finegrained
gpipe FINE executor.name=simulated partition.replicas=[2,1,1,1,1] -> partition.replicas=[2, 1, 1, 1, 1]
naive_async HOGWILD -> method=Hogwild reads weights
gpipe train.recompute_boundaries=[0] -> train.recompute_boundaries=[0]
gpipe train.recompute_boundaries=[3] executor.name=simulated -> train.recompute_boundaries=[3]
gpipe train.recompute_boundaries=[0] executor.name=simulated partition.replicas=[2,1] -> train ... with partition.rep
gpipe model._target_=HERE.frozen -> model: no parameter requires a gradient
gpipe model._target_=HERE.complex_one -> model: 0.phase
gpipe model._target_=HERE.sparse -> model: 1 has sparse=True
gpipe model._target_=HERE.uncopied -> KeyError: 'one of a kind'
gpipe model.untie=maybe -> model.untie=maybe
gpipe optimizer.lr=null -> optimizer.lr=null: learning-rate schedules scale it; set a rate
gpipe optimizer._target_=torch.optim.LBFGS optimizer.lr=0.1 -> optimizer._target_=torch.optim.LBFGS
naive_async optimizer._target_=torch.optim.SparseAdam optimizer.lr=0.1 -> optimizer._target_=torch.optim.SparseAdam
gpipe optimizer.groups=[{match:1.cnv.*}] -> optimizer.groups[0].match=1.cnv.*
gpipe optimizer.groups=[{match:[6.*,head]}] -> optimizer.groups[0].match=head
gpipe optimizer.groups=[{max_dims:0}] -> optimizer.groups[0] (max_dims=0)
gpipe optimizer.groups=[{match:'*.weight',max_dims:0}] -> optimizer.groups[0] (match=*.weight, max_dims=0)
gpipe optimizer.groups=[{match:'*'},{max_dims:1}] -> optimizer.groups[1] (max_dims=1)
gpipe optimizer.groups=[{max_dims:1,lr:0.1}] -> optimizer.groups[0].lr=0.1
gpipe optimizer.groups=[{max_dims:1,fused:false}] -> optimizer.groups[0].fused=false
gpipe optimizer.groups=[{max_dims:1,nesterov:true,momentum:0}] -> optimizer.groups[0] (max_dims=1)
gpipe loss._target_=pipetrain.engine.losses.CrossEntropy loss.smoothing=1 -> loss.smoothing=1
gpipe loss._target_=pipetrain.engine.losses.CrossEntropy loss.label_smoothing=2 -> loss.label_smoothing=2
gpipe loss._target_=torch.nn.CrossEntropyLoss loss.reduction=sum -> loss._target_=torch.nn.CrossEntropyLoss
gpipe loss._target_=torch.nn.CrossEntropyLoss loss.weight=[1,a] -> loss.weight=[1, 'a']
gpipe loss._target_=torch.nn.functional.mse_loss -> loss._target_=torch.nn.functional.mse_loss
gpipe train.target={top9:3} -> train.target={'top9': 3}
gpipe checkpoint.metric=top9 -> checkpoint.metric=top9
gpipe threads=1000000 -> threads=1000000
gpipe dataset.workers=1000000 -> dataset.workers=1000000
gpipe train.batch_size=23 -> train.batch_size=23
gpipe train.batch_size=4 dataset.limit=3 -> train.batch_size=4
gpipe CONSTANT lr_schedule.warmup=3 -> lr_schedule.warmup=3
gpipe CONSTANT lr_schedule.warmup=13 lr_schedule.unit=step -> lr_schedule.warmup=13
pipedream schedule.depth=7 -> schedule.depth=7
pipedream schedule.depth=4 partition.replicas=[2,2] -> schedule.depth=4
pipedream resume=/nowhere -> resume=/nowhere
pipedream resume='' -> resume=
pipedream partition.replicas=[0,1] -> partition.replicas=[0, 1]
pipedream partition.replicas=2 -> partition.replicas=2
pipedream partition.replicas=[2,1,1] -> partition.replicas=[2, 1, 1]
pipedream partition.replicas=[7,1] -> partition.replicas=[7, 1]
pipedream partition.replicas=[2,1] train.precision=fp16 -> partition.replicas=[2, 1]
pipedream averaging.average=weights -> averaging.average=weights: no stage has replicas; set partition.replicas
pipedream averaging.average=weights partition.replicas=[2,1] -> averaging.average=weights: partition.replicas=[2, 1]
pipedream averaging.average=weights partition.replicas=[2,2] train.ema=0.9 -> averaging.average=weights with train.ema
pipedream averaging.average=weights partition.replicas=[2,2] train.precision=fp16 -> partition.replicas=[2, 2]
vertical_sync partition.replicas=[2,1] -> partition.replicas=[2, 1]
gpipe partition.replicas=[2,1] TIED -> partition.replicas=[2, 1]
gpipe log.staleness_gradient=true -> log.staleness_gradient=true ... log.staleness_every_steps=null
gpipe GRADIENT -> log.staleness_gradient=true
gpipe optimizer.groups=[{match:decoder.weight}] TIED -> optimizer.groups[0].match=decoder.weight
gpipe optimizer.groups=[{max_dims:1,weight_deacy:0}] -> optimizer.groups[0].weight_deacy=0 ... did you mean
gpipe optimizer.groups=[{max_dims:1,betas:[0.5,0.9]}] -> optimizer.groups[0].betas= ... it takes match, max_dims,
gpipe LARS optimizer.groups=[{max_dims:1,trust:high}] -> optimizer.groups[0] (max_dims=1): optimizer.trust=high
gpipe MUON optimizer.groups=[{max_dims:1},{match:'6.*',algorithm:sgd}] -> optimizer.groups[1] (match=6.*): algorithm=sgd
gpipe NOISY TIED -> optimizer: HERE.Noisy draws random numbers
gpipe NOISY partition.replicas=[2,1] -> optimizer: HERE.Noisy draws random numbers
spectrain optimizer.groups=[{max_dims:1,momentum:0}] -> method=spectrain ... of some parameters is SGD
pipeoptim optimizer.groups=[{max_dims:1,maximize:true}] -> optimizer.groups: maximize=true
gpipe optimizer.momentum_by_stage=[0.5,0.9] TIED -> optimizer.momentum_by_stage=[0.5, 0.9]: ... in stages 0 and 1
gpipe optimizer.momentum=0.0 optimizer.momentum_by_stage=[0.5,0.9] -> optimizer.momentum_by_stage= ... with momentum=0
pipedream log.staleness_every_steps=0 -> log.staleness_every_steps=0
pipedream GRADIENT executor.name=simulated partition.replicas=[2,1] -> log.staleness_gradient=true
gpipe GRADIENT executor.name=simulated TIED -> log.staleness_gradient=true
gpipe TORCH partition.stages=4 log.staleness_every_steps=2 -> log.staleness_every_steps=2
gpipe TORCH partition.stages=4 partition.replicas=[2,1,1,1] -> partition.replicas=[2, 1, 1, 1]: schedule=torch
pipedream TIED partition.stages=3 -> partition.stages=3: ... encoder.linear.weight; at most 2 ... untie=true
pipedream TIED FINE executor.name=simulated -> partition=finegrained: ... share encoder.linear.weight
gpipe VECTORS dataset.width=8 -> dataset: the model fails on `eval`: ... (2, 8), ... (2, 4)
gpipe VECTORS dataset.dtype=float64 -> loss._target_= ... targets float64 (2,)
gpipe dataset._target_=builtins.dict -> dataset._target_=builtins.dict: returned a dict of nothing
gpipe train.microbatches=2 GROWING -> model: ... changes a buffer in place
pipedream GROWING -> model: ... changes a buffer in place
"""
"""Method and settings -> how the message begins; `...` is anything."""
ACCEPTED = """\
gpipe optimizer.groups=[{match:decoder.weight}] TIED model.untie=true
gpipe optimizer.groups=[{match:[decoder.weight,encoder.*]}] TIED
gpipe optimizer.momentum_by_stage=[0.5,0.9] TIED model.untie=true
gpipe train.microbatches=1 GROWING
sequential train.microbatches=2 GROWING
pipedream partition.stages=1 train.microbatches=2 GROWING
pipedream FINE executor.name=simulated GROWING
pipedream schedule.depth=7 train.microbatches=2
pipedream schedule.depth=7 partition.stages=1
"""
"""What a refusal advises, and its limits."""


def prepared_with(folder, line):
    for short, words in SHORT.items():
        line = line.replace(short, words)
    case, *words = line.split()
    changes = OmegaConf.to_container(OmegaConf.from_dotlist([word.replace(":", ": ") for word in words]))
    changes["partition"] = {**EVEN, **changes.get("partition", {})}
    if "schedule" in changes:
        changes["schedule"] = {**DEEP, **changes["schedule"]}
    return prepared(folder, case, **changes)


@pytest.mark.parametrize("line", every(3, REFUSED.splitlines()))
def test_run_that_cannot_work_is_refused_by_its_setting_before_it_starts(tmp_path, line):
    given, _, named = line.partition(" -> ")
    pattern = ".*".join(re.escape(part) for part in named.replace("HERE", __name__).split(" ... "))
    with pytest.raises(ConfigError, match=f"^{pattern}") as caught:
        prepared_with(tmp_path, given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("line", ACCEPTED.splitlines())
def test_run_within_the_limits_of_a_refusal_is_accepted(tmp_path, line):
    assert prepared_with(tmp_path, line)
