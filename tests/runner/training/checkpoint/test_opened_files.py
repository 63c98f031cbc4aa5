"""Names of tensors in the manifest: a process opens only the files that it needs, and reads only values it needs."""

import gc
import json
import weakref
from collections import Counter
from dataclasses import replace

import pytest
import torch
from support import small_model, tied_model
from support.checkpoints import Processes
from support.one_run import prepared
from support.pipelines import half_decay, sgd
from support.refusals import assert_refused
from support.worker_pool import simulated

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.executors.pipeline import build_stages
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.stage.base import Training
from pipetrain.engine.stage.saved_state import stage_tensors
from pipetrain.runner.tracking import summary
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint import contents, manifest, store, tensor_file

TRAINING = Training(OptimizerFactory(sgd, half_decay), CrossEntropy())
LAST = {"run.losses": torch.zeros(1)}


def stages(number, model=small_model, training=TRAINING):
    return build_stages(model.build(1, 4), small_model.bounds(number), training)


def saved(run, number, model=small_model):
    """A checkpoint of so many stages, each in a process."""
    return saved_stages(run, stages(number, model))


def saved_stages(run, built):
    folder, number = RunDirectory(run).checkpoint(1), len(built)
    folder.parent.parent.mkdir(exist_ok=True)
    parts = [stage_tensors(stage) for stage in built]
    assert Processes(number).save(folder, [*parts[:-1], {**parts[-1], **LAST}]) == [None] * number
    return folder


@pytest.fixture
def opened(monkeypatch):
    """Counts how often each file of tensors is opened."""
    count, safe_open = Counter(), tensor_file.safe_open
    monkeypatch.setattr(
        tensor_file, "safe_open", lambda path, **how: count.update([path.name]) or safe_open(path, **how)
    )
    return count


@pytest.mark.parametrize("number", [3, 5])
def test_each_stage_opens_its_own_file_once(tmp_path, opened, monkeypatch, number):
    folder = saved(tmp_path, number)
    entries, parsed = manifest.entries, []
    monkeypatch.setattr(manifest, "entries", lambda folder: parsed.append(folder) or entries(folder))
    contents.restore(stages(number), folder, 1)
    assert parsed == [folder]
    assert opened == {f"process-{r}.safetensors": 1 for r in range(number)}


def test_stage_of_another_partition_opens_the_files_of_its_layers(tmp_path, opened):
    folder = saved(tmp_path, 4)  # layers 0, 1, 2 to 4, 5 and 6
    for stage, files in zip(stages(2), ([0, 1], [2, 3]), strict=True):
        opened.clear()
        contents.restore([stage], folder, 1)
        assert opened == {f"process-{r}.safetensors": 1 for r in files}


def test_shared_weight_is_read_from_the_file_of_its_first_stage(tmp_path, opened):
    folder = saved(tmp_path, 3, tied_model)
    contents.restore(stages(3, tied_model)[2:], folder, 1)
    assert opened == {"process-0.safetensors": 1, "process-2.safetensors": 1}


def test_loss_scale_of_layers_without_tensors_is_restored(tmp_path, opened):
    training = replace(TRAINING, arithmetic=ComputeOptions("fp16"))

    def scaled(folder, number):
        built = stages(number, training=training)
        for stage in built:
            stage.scaler.scale = 4.0 + stage.index
        return saved_stages(folder, built)

    folder = scaled(tmp_path / "same", 6)
    for stage in stages(6, training=training):
        contents.restore([stage], folder, 1)
        assert stage.scaler.scale == 4.0 + stage.index
    assert opened == {f"process-{r}.safetensors": 1 for r in range(6)}
    pool = stages(6, training=training)[4]  # was in one stage with the last layer
    contents.restore([pool], scaled(tmp_path / "other", 5), 1)
    assert pool.scaler.scale == 4.0


def test_history_opens_one_file(tmp_path, opened):
    folder = saved(tmp_path, 4)
    assert contents.load_history(folder).keys() == LAST.keys()
    assert opened == {"process-3.safetensors": 1}


def test_manifest_that_lists_other_tensors_is_refused_with_the_file(tmp_path):
    folder = saved(tmp_path, 2)
    file = folder / manifest.NAME
    content = json.loads(file.read_text())
    listed = content["files"]["process-1.safetensors"]
    listed["tensors"].append("model.more")
    file.write_text(json.dumps(content, indent=2) + "\n")
    assert_refused(f"{folder}/process-1.safetensors: .*model.more", contents.model_state, folder)
    listed["tensors"] = [1]
    file.write_text(json.dumps(content, indent=2) + "\n")
    assert store.problem(folder).startswith(f"{file}: damaged: ")


def test_resumed_run_is_hashed_once_before_it_starts(tmp_path, monkeypatch):
    simulated(prepared(tmp_path, train={"max_steps": 2}))
    hashed, sha256_of = Counter(), manifest.sha256_of
    monkeypatch.setattr(manifest, "sha256_of", lambda path: hashed.update([path.name]) or sha256_of(path))
    prepared(tmp_path, train={"max_steps": 4}, resume=str(tmp_path / "run"))
    files = {"config.json", "process-0.safetensors", "progress.json"}
    assert hashed == dict.fromkeys(files, 1)


def test_hash_of_the_model_holds_one_tensor_at_a_time(tmp_path):
    folder, alive = saved(tmp_path, 4), []

    def watched():
        for name, tensor in contents.weights_in_order(folder):
            gc.collect()
            assert all(each() is None for each in alive[:-1])
            alive.append(weakref.ref(tensor))
            yield name, tensor

    found = summary.weights_sha256(watched())
    assert found == summary.weights_sha256(sorted(contents.model_state(folder).items()))
    assert len(alive) == len(small_model.build(1, 4).module.state_dict())
