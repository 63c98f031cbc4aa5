"""Checkpoints: complete or absent, and found by step."""

import pytest
import torch
from support import small_model

from pipetrain.errors import ConfigError
from pipetrain.run import checkpoint
from pipetrain.run.checkpoint_names import Kind
from pipetrain.tracking.run_directory import RunDirectory


def tensors(chain, value=1.0):
    """A checkpoint of a model whose weights are all `value`."""
    state = {f"model.{name}": torch.full_like(tensor, value) for name, tensor in chain.module.state_dict().items()}
    return {**state, "optimizer.0.weight/momentum_buffer": torch.ones(2), "run.losses": torch.tensor([3.0, 2.0])}


@pytest.fixture
def chain():
    return small_model.build(1, 4)


def save(run, step, content):
    checkpoint.save(RunDirectory(run).checkpoint(step), content, {"step": step}, coordinator=True, barrier=None)


def test_checkpoint_is_read_back_by_kind(tmp_path, chain):
    save(tmp_path, 3, tensors(chain, 0.5))
    folder = checkpoint.find(str(tmp_path))
    assert checkpoint.load_progress(folder) == {"step": 3}
    assert checkpoint.load_history(folder)["run.losses"].tolist() == [3.0, 2.0]
    state = checkpoint.whole_state(folder, chain)
    assert state.keys() == chain.module.state_dict().keys()
    assert all((tensor == torch.tensor(0.5).to(tensor.dtype)).all() for tensor in state.values())
    (optimizer,) = checkpoint.load_tensors(folder, lambda name: name.kind is Kind.OPTIMIZER)
    assert (optimizer.of, optimizer.key) == ("0.weight", "momentum_buffer")


def test_checkpoint_written_again_takes_the_place_of_the_first(tmp_path, chain):
    for value in (1.0, 2.0):
        save(tmp_path, 3, tensors(chain, value))
    (folder,) = checkpoint.checkpoints(tmp_path)
    assert {path.name for path in folder.parent.iterdir()} == {"step-00000003"}
    assert checkpoint.model_state(folder)["0.weight"].unique().tolist() == [2.0]


def test_checkpoint_is_found_by_its_step_or_as_the_newest(tmp_path, chain):
    for step in (9, 10, 100):
        save(tmp_path, step, tensors(chain))
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == [f"step-{step:08d}" for step in (9, 10, 100)]
    assert checkpoint.at_step(tmp_path, None).name == "step-00000100"
    nine = checkpoint.at_step(tmp_path, 9)
    assert checkpoint.find(str(nine)) == nine
    with pytest.raises(ConfigError, match=r"--step 8: .* has no checkpoint of that step; steps there are: 9, 10, 100"):
        checkpoint.at_step(tmp_path, 8)


def test_folder_without_checkpoints_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path}: no checkpoint here"):
        checkpoint.find(str(tmp_path))
    with pytest.raises(ConfigError, match="steps there are: none"):
        checkpoint.at_step(tmp_path, 0)


def test_checkpoint_of_another_model_names_a_weight_of_one_alone(tmp_path, chain):
    content = tensors(chain)
    content["model.extra"] = content.pop("model.0.bias")
    save(tmp_path, 1, content)
    with pytest.raises(ConfigError, match=r"was saved from another model; only one of the two has 0\.bias"):
        checkpoint.whole_state(checkpoint.find(str(tmp_path)), chain)
