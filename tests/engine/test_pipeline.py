"""The engine's own interface: a pipeline that takes any iterable of minibatches."""

import copy
import json
import os
from functools import partial

import pytest
import torch
import torch.distributed as dist
from support.forking import forked
from support.processes import python
from support.refusals import assert_refused
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pipetrain.engine import (
    GPipe,
    NaiveAsync,
    OneFOneB,
    PipeDream,
    Pipeline,
    PipeMare,
    PipeMareSchedule,
    PipeOptim,
    Synchronous,
)
from pipetrain.engine.errors import ConfigError, DataError
from pipetrain.engine.schedules.one_f_one_b_v import OneFOneBV
from pipetrain.engine.schedules.replicas import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.engine.schedules.sequential import DataParallel
from pipetrain.engine.stage.saved_state import restore_stage, selected, stage_tensors

BUILD = {"schedule": OneFOneB(), "method": PipeDream(), "loss": nn.CrossEntropyLoss(), "device": "cpu"}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 3))


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def data(minibatches=4):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 6, generator=generator), torch.arange(8) % 3) for _ in range(minibatches)]


def pipeline(stages=2, **changes):
    return Pipeline(model(), stages, **{**BUILD, "optimizer": adamw, **changes})


def test_one_stage_trains_as_a_plain_loop_does():
    reference = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    built = Pipeline(
        copy.deepcopy(reference), 1, **{**BUILD, "schedule": GPipe(), "method": Synchronous(), "optimizer": adamw}
    )
    optimizer, losses = adamw(reference.parameters()), []
    for inputs, targets in data():
        loss = nn.functional.cross_entropy(reference(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert built.train(data()) == losses
    for name, weight in reference.state_dict().items():
        assert torch.equal(built.weights()[name], weight)


def test_any_iterable_gives_the_same_training():
    rows = TensorDataset(torch.cat([x for x, _ in data()]), torch.cat([y for _, y in data()]))
    losses = pipeline().train(data())
    for minibatches in ((pair for pair in data()), DataLoader(rows, batch_size=8), [[(x,), [y]] for x, y in data()]):
        assert pipeline().train(minibatches) == losses


def test_a_loader_that_shuffles_is_read_once_for_inputs_and_targets():
    rows = TensorDataset(torch.arange(32.0)[:, None], torch.arange(32.0)[:, None])
    identity = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    for layer in identity:
        nn.init.ones_(layer.weight)
        nn.init.zeros_(layer.bias)
    built = Pipeline(
        identity, 2, **{**BUILD, "loss": nn.MSELoss(), "optimizer": lambda weights: torch.optim.SGD(weights, lr=0.0)}
    )
    assert built.train(DataLoader(rows, batch_size=4, shuffle=True)) == [0.0] * 8


def test_replicas_of_the_whole_model_take_minibatches_in_turn():
    schedule = RoundRobin(DataParallel(), Replicas((2,)))
    sgd = {"optimizer": lambda weights: torch.optim.SGD(weights, lr=0.0), "method": Synchronous()}
    still = Pipeline(nn.Sequential(nn.Linear(6, 3)), 1, **{**BUILD, **sgd, "schedule": schedule})
    assert still.train(data(5)) == [still.evaluate([minibatch])["loss"] for minibatch in data(5)]


@pytest.mark.parametrize(
    ("schedule", "method"), [(OneFOneB(), PipeOptim()), (PipeMareSchedule(), PipeMare()), (OneFOneB(), NaiveAsync())]
)
def test_a_restored_pipeline_goes_on_as_if_never_stopped(schedule, method, tmp_path):
    whole, first = (pipeline(3, schedule=schedule, method=method) for _ in range(2))
    expected = [whole.train(data()), whole.train(data(3))]
    assert first.train(data()) == expected[0]
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = pipeline(3, schedule=schedule, method=method)
    second.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert (second.train(data(3)), second.steps) == (expected[1], 7)
    assert all(torch.equal(weight, whole.weights()[name]) for name, weight in second.weights().items())


def test_a_stage_is_restored_from_its_own_state_if_it_shares_a_weight():
    layers = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    layers[2].weight = layers[0].weight
    shared = {"schedule": GPipe(), "method": Synchronous(), "optimizer": adamw}
    trained, fresh = (Pipeline(copy.deepcopy(layers), [2], **{**BUILD, **shared}) for _ in range(2))
    trained.train(data())
    for stage, other in zip(trained.stages, fresh.stages, strict=True):
        own = stage_tensors(stage, shared=True)
        restore_stage(other, partial(selected, own), 4, "the state dict")
        assert all(torch.equal(weight, other.state()[name]) for name, weight in stage.state().items())
    whole = trained.state_dict()
    assert set(whole["tensors"]) == set().union(*(stage_tensors(stage, shared=True) for stage in trained.stages))


def test_report_and_evaluation():
    built = pipeline(3)
    built.train(data(6))
    assert [stage["weight_versions_max"] for stage in built.report()] == [3, 2, 1]
    assert [stage["forward_staleness"] for stage in built.report()] == [[2], [1], [0]]
    assert set(built.evaluate(data())) == {"loss", "top1"}


def alone(_rank, port, path):
    """All stages in the one process of a launcher; leaves what they found."""
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT=str(port))
    path.write_text(json.dumps(trained_and_evaluated()))
    dist.destroy_process_group()


def trained_and_evaluated():
    one = pipeline(1, schedule=GPipe(), method=Synchronous())
    return [[built.train(data(6)), built.evaluate(data(5))] for built in (one, pipeline(2, schedule=OneFOneBV()))]


def test_one_process_of_a_launcher_reads_each_minibatch_once(tmp_path):
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    forked(alone, port, tmp_path / "found.json", count=1)
    assert json.loads((tmp_path / "found.json").read_text()) == trained_and_evaluated()


def test_parameter_groups_keep_their_rates():
    def groups(weights):
        return torch.optim.SGD([{"params": weights[:1], "lr": 0.0}, {"params": weights[1:]}], lr=0.1)

    built = pipeline(1, schedule=GPipe(), method=Synchronous(), optimizer=groups)
    before = model().state_dict()
    built.train(data())
    after = built.weights()
    assert torch.equal(after["0.weight"], before["0.weight"])
    assert not torch.equal(after["0.bias"], before["0.bias"])


@pytest.mark.parametrize(("stages", "expected"), [(1, []), (2, [1]), (5, [1, 2, 3, 4]), ([1, 4], [1, 4])])
def test_stages_are_cut_where_weights_are_balanced_or_as_given(stages, expected):
    assert [int(stage.layers.split("-")[0]) for stage in pipeline(stages).stages][1:] == expected


def test_wrong_arguments_are_refused(monkeypatch):
    for stages in (6, 0, [3, 2], [0], [5]):
        assert_refused(r"each stage needs a layer, and the model has 5", pipeline, stages)
    assert_refused(r"PipeDream takes schedules of the continuous family, and GPipe", pipeline, schedule=GPipe())
    for item in (torch.zeros(8), [torch.zeros(8)], {"x": 1}, (torch.zeros(8), 1), ((), torch.zeros(8))):
        with pytest.raises(DataError, match="it must be a pair"):
            pipeline().train([item])
    with pytest.raises(ConfigError, match="the state dict: was saved from another model"):
        pipeline().load_state_dict({"tensors": {}, "steps": 0, "epochs": 0})
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert_refused(r"3 processes for 2 stages; torchrun --nproc-per-node 2", pipeline)


def test_import_loads_nothing_that_only_the_command_needs():
    code = """import sys, torch
before = set(sys.modules)
import pipetrain.engine
from pipetrain.engine import Pipeline
print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"""
    loaded = set(python(code).stdout.split())
    assert "pipetrain" in loaded
    unwanted = {"hydra", "omegaconf", "tqdm", "tensorboard", "matplotlib", "torchvision", "yaml", "PIL"}
    assert loaded & unwanted == set()
