"""Checkpoints: found by step or path, read by kind, and never used when damaged."""

import json
import math
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import small_model, tied_model
from support.checkpoints import NAMES, written
from support.one_run import carried_out
from support.pipelines import half_decay, sgd
from support.refusals import assert_refused
from support.worker_pool import job, simulated

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline import build_stages
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.stage.base import Training
from pipetrain.engine.stage.saved_state import Kind, stage_tensors
from pipetrain.runner.config.schema import CheckpointConfig
from pipetrain.runner.terminal.error_line import message
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint import contents, manifest, store
from pipetrain.runner.training.checkpoint.store import Selection
from pipetrain.runner.training.finished.export import export

TRAINING = Training(OptimizerFactory(sgd, half_decay), CrossEntropy())


def tensors(chain, value=1.0, steps=3):
    """A checkpoint of a model whose weights are all `value`, after `steps` steps."""
    state = {f"model.{name}": torch.full_like(tensor, value) for name, tensor in chain.module.state_dict().items()}
    return {**state, "optimizer.0.weight/momentum_buffer": torch.ones(2), "run.losses": torch.arange(float(steps))}


@pytest.fixture
def chain():
    return small_model.build(1, 4)


def test_checkpoint_is_read_back_by_kind(tmp_path, chain):
    written(tmp_path, 3, tensors(chain, 0.5))
    folder = store.newest_undamaged(str(tmp_path))
    assert store.load_progress(folder) == {"step": 3, **NAMES}
    assert contents.load_history(folder)["run.losses"].tolist() == [0.0, 1.0, 2.0]
    state = contents.named_state(folder)
    assert state.keys() == chain.module.state_dict().keys()
    assert all((tensor == torch.tensor(0.5).to(tensor.dtype)).all() for tensor in state.values())
    (state,) = contents.load_tensors(folder, Kind.OPTIMIZER).items()
    assert (state[0], [*state[1]]) == ("0.weight", ["momentum_buffer"])


def test_checkpoint_is_found_by_its_step_or_as_the_newest(tmp_path, chain):
    for step in (9, 10, 100):
        written(tmp_path, step, tensors(chain, steps=step))
    assert [path.name for path in store.checkpoints(tmp_path)] == [f"step-{step:08d}" for step in (9, 10, 100)]
    assert store.newest_undamaged(tmp_path).name == "step-00000100"
    nine = store.at_step(tmp_path, 9)
    assert store.newest_undamaged(str(nine)) == nine
    assert_refused(r"--step 8: .*: 9, 10, 100", store.at_step, tmp_path, 8)


@pytest.mark.parametrize("has", ["checkpoints", "config.yaml"])
def test_run_directory_with_the_name_of_a_checkpoint_is_none(tmp_path, chain, has):
    run = RunDirectory(tmp_path / "step-2")
    if has == "checkpoints":
        written(run.path, 9, tensors(chain, steps=9))
        assert store.newest_undamaged(run.path) == run.checkpoint(9)
    else:
        run.path.mkdir()
        run.config.write_text("{}")
    assert not store.is_checkpoint(run.path)
    assert Selection(run.path).run.path == run.path


def test_folder_without_checkpoints_is_refused_by_name(tmp_path):
    assert_refused(f"{tmp_path}: no checkpoint here", store.newest_undamaged, str(tmp_path))
    assert_refused("it has: none", store.at_step, tmp_path, 0)


def test_checkpoint_of_another_model_names_a_weight_of_one_alone(tmp_path, chain):
    content = tensors(chain, steps=1)
    content["model.extra"] = content.pop("model.0.bias")
    written(tmp_path, 1, content)
    assert_refused(r"another model; .* 0\.bias", contents.check_model, store.newest_undamaged(str(tmp_path)), chain)


@pytest.fixture
def folder(tmp_path, chain):
    """The newest of two checkpoints of a run."""
    written(tmp_path, 3, tensors(chain))
    written(tmp_path, 6, tensors(chain, steps=6))
    return RunDirectory(tmp_path).checkpoint(6)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


OUTSIDE = '{"format": 3, "files": {"../x": {"size": 1, "sha256": ""}}}'
DAMAGE = [
    ("process-0.safetensors", flip_a_bit, r"its sha256 is not that of manifest\.json"),
    ("process-0.safetensors", truncate, r"it has [\d,]+ bytes instead of [\d,]+"),
    ("process-0.safetensors", Path.unlink, "it is missing"),
    ("progress.json", truncate, r"it has \d+ bytes instead of \d+"),
    ("progress.json", Path.unlink, "it is missing"),
    ("config.json", truncate, "it has 15 bytes instead of 31"),
    ("config.json", Path.unlink, "it is missing"),
    ("manifest.json", truncate, "it lists no files"),
    ("manifest.json", lambda path: path.write_text(path.read_text() + " "), "it is not as it was written"),
    ("manifest.json", lambda path: path.write_text("[]"), "it lists no files"),
    ("manifest.json", lambda path: path.write_text(OUTSIDE), "it lists no files"),
    ("manifest.json", Path.unlink, "it is missing"),
]


@pytest.mark.parametrize(("name", "damage", "fault"), DAMAGE)
def test_damaged_checkpoint_names_file_and_newest_whole_one(tmp_path, folder, name, damage, fault):
    assert store.problem(folder) is None
    whole = RunDirectory(tmp_path).checkpoint(3)
    damage(folder / name)
    assert re.fullmatch(f"{re.escape(str(folder / name))}: damaged: .*{fault}.*", store.problem(folder))
    refusal = f"{name}: damaged: .*; the newest one before it that is whole is {re.escape(str(whole))}$"
    for found in (lambda: store.newest_undamaged(str(tmp_path)), lambda: store.at_step(tmp_path, 6)):
        assert_refused(refusal, found)
    damage(whole / name)
    assert_refused(r"damaged: [^;]*$", store.newest_undamaged, str(folder))


def test_checkpoint_named_inside_its_folder_knows_its_siblings(tmp_path, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    truncate(folder / "progress.json")
    with pytest.raises(ConfigError, match=f"is whole is {re.escape(str(RunDirectory(tmp_path).checkpoint(3)))}$"):
        store.undamaged(Path(folder.name))


def test_tensor_that_no_checkpoint_has_is_refused_with_its_file(tmp_path):
    written(tmp_path, 3, {"strange.weight": torch.ones(1)})
    assert_refused(r"process-0.safetensors: .* 'strange'", contents.model_state, RunDirectory(tmp_path).checkpoint(3))


@pytest.mark.parametrize("name", ["progress.json", "config.json"])
def test_manifest_without_a_file_that_each_has_is_no_checkpoint(folder, name):
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"][name]
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    (folder / name).unlink()
    assert store.problem(folder) == f"{folder}/{name}: damaged: it is not in the manifest"


@pytest.mark.parametrize("name", ["process-1.safetensors", ".pickle"])
def test_foreign_file_is_named_and_the_checkpoint_refused(tmp_path, folder, name):
    (folder / name).touch()
    assert store.problem(folder) == f"{folder / name}: foreign: it is not in manifest.json"
    assert_refused(r"foreign: .* that is whole is .*step-00000003$", store.newest_undamaged, str(tmp_path))


def test_foreign_file_name_is_escaped_for_the_terminal(folder):
    (folder / "\x1b]0;evil\x07").touch()
    with pytest.raises(ConfigError) as error:
        store.undamaged(folder)
    assert "foreign" in (shown := message(error.value))
    assert shown.isprintable()
    assert r"\x1b]0;evil\x07" in shown


@pytest.mark.parametrize("text", ["{}", "[]", '{"settings": {}}', '{"settings": [], "choices": {}}', "[" * 200_000])
def test_configuration_without_settings_is_damaged(folder, monkeypatch, text):
    (folder / "config.json").write_text(text)
    monkeypatch.setattr(store.manifest, "problem", lambda _folder: None)
    assert store.problem(folder) == f"{folder}/config.json: damaged: it holds no settings"


def test_newest_whole_checkpoint_lists_faults_of_newer_ones(tmp_path, folder):
    assert store.newest_whole(tmp_path) == (folder, [])
    truncate(folder / "progress.json")
    earlier, fault = RunDirectory(tmp_path).checkpoint(3), store.problem(folder)
    assert store.newest_whole(tmp_path) == (earlier, [fault])
    (earlier / "manifest.json").unlink()
    assert store.newest_whole(tmp_path) == (None, [fault, store.problem(earlier)])


WRONG = [
    ([], "it holds no fields"),
    *[({"step": step, **NAMES}, "its step is not a number of steps") for step in ("six", -3, 1.5, True, None)],
    ({"step": 6}, "its model is not text"),
    ({"step": 6, "model": "small", "dataset": 1}, "its dataset is not text"),
]


def rewritten(folder, text):
    """A checkpoint whose progress and manifest go together, though no run has written it."""
    (folder / "progress.json").write_text(text)
    others = [entry for entry in manifest.entries(folder) if entry.name != "progress.json"]
    manifest.write(folder, [*others, manifest.FileEntry.of(folder / "progress.json")])


@pytest.mark.parametrize(("progress", "fault"), WRONG)
def test_progress_that_no_run_writes_is_damaged(folder, progress, fault):
    rewritten(folder, json.dumps(progress))
    assert store.problem(folder) == f"{folder}/progress.json: damaged: {fault}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[" * 200_000, "nested too deeply"),
        ('{"step": NaN, "model": "", "dataset": ""}', "its step is not a number of steps"),
    ],
)
def test_malicious_progress_counts_as_damage(tmp_path, folder, text, fault):
    rewritten(folder, text)
    faults = [f"{folder}/progress.json: damaged: {fault}"]
    assert store.newest_whole(tmp_path) == (RunDirectory(tmp_path).checkpoint(3), faults)


def test_torch_distributed_checkpoint_is_refused_unpickled(tmp_path):
    folder = RunDirectory(tmp_path).checkpoint(4)
    folder.mkdir(parents=True)
    (folder / "progress.json").write_text('{"step": 4}')
    (folder / ".metadata").write_bytes(pickle.dumps(_Trap(tmp_path / "ran")))
    assert_refused(f"{folder}/manifest.json: damaged: it is missing", store.newest_undamaged, str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_checkpoint_of_another_format_is_refused_by_its_number(tmp_path, folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"format": 3', '"format": 2'))
    assert_refused(f"{folder}: in format 2 .* format 3", store.newest_undamaged, str(tmp_path))


class _Trap:
    """Runs code where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


SHARED = "encoder.linear.weight"


def test_weight_shared_by_stages_is_saved_once_and_restored(tmp_path):
    made = job(tmp_path / "run", "gpipe", 3, model={"_target_": "support.tied_model.build"}, train={"max_steps": 2})
    simulated(made)
    folder = store.newest_undamaged(str(tmp_path / "run"))
    state = contents.model_state(folder)
    assert len(state) == len(set(tied_model.build(1, 4).module.parameters()))
    assert torch.equal(contents.named_state(folder)["decoder.weight"], state[SHARED])
    for stages in (1, 2, 3):
        built = build_stages(tied_model.build(1, 4), small_model.bounds(stages), TRAINING)
        for stage in built:
            contents.restore([stage], folder, 2)
        holders = [stage for stage in built if SHARED in stage.state()]
        assert [stage.index for stage in holders] == sorted({0, stages - 1})
        assert all(torch.equal(stage.state()[SHARED], state[SHARED]) for stage in holders)
        momenta = [stage.optimizer.state()[local]["momentum_buffer"] for stage in holders for local in [of(stage)]]
        assert all(torch.equal(momentum, momenta[0]) for momentum in momenta)


def of(stage):
    """What a stage calls the shared weight."""
    return next(local for local, full in stage.full_names.items() if full == SHARED)


def test_untied_checkpoint_is_refused_for_tied_model(tmp_path):
    model = {"_target_": "support.tied_model.build", "untie": True}
    simulated(job(tmp_path / "run", "pipedream", 2, model=model, train={"max_steps": 2}))
    folder = store.newest_undamaged(str(tmp_path / "run"))
    assert_refused(r"model\.untie=true; decoder\.weight and", contents.check_model, folder, tied_model.build(1, 4))
    said = export(Selection(tmp_path / "run"), tmp_path / "w.pt", "torch")
    assert said.endswith(
        "encoder.linear.weight and decoder.weight have values of their own; "
        "a model that ties them keeps the value that it loads last"
    )


def test_loss_scale_is_of_same_stage_or_most_cautious(tmp_path):
    training = replace(TRAINING, arithmetic=ComputeOptions("fp16"))
    stages = build_stages(small_model.build(1, 4), small_model.bounds(2), training)
    for stage, factor in zip(stages, (64.0, 32.0), strict=True):
        stage.scaler.scale = factor
    content = {name: tensor for stage in stages for name, tensor in stage_tensors(stage).items()}
    written(tmp_path, 3, content)
    folder = store.newest_undamaged(str(tmp_path))
    for number, factors in ((2, [64.0, 32.0]), (3, [64.0, 32.0, 32.0]), (1, [32.0])):
        built = build_stages(small_model.build(1, 4), small_model.bounds(number), training)
        for stage in built:
            contents.restore([stage], folder, 3)
        assert [stage.scaler.scale for stage in built] == factors


METRICS = {
    0: {},
    2: {"loss": 3.0, "top1": 10.0},
    4: {"loss": 1.0, "top1": 40.0},
    5: {},
    6: {"loss": math.nan, "top1": 40.0},
    8: {"loss": 2.0, "top1": 30.0},
    10: {"loss": 2.5, "top1": 20.0},
}


@pytest.fixture
def run(tmp_path):
    """A run with a checkpoint of every step of METRICS, some of them not evaluated."""
    made = RunDirectory(tmp_path)
    for step, metrics in METRICS.items():
        made.checkpoint(step).mkdir(parents=True)
        (made.checkpoint(step) / "progress.json").write_text(json.dumps({"step": step, "metrics": metrics}))
    return made


def test_best_checkpoint_by_falling_metric_is_the_lowest(run):
    for step, error in ((4, 3.0), (8, 1.0), (10, 2.0)):
        progress = {"step": step, "metrics": {"error": error}, "lower_is_better": ["error", "loss"]}
        (run.checkpoint(step) / "progress.json").write_text(json.dumps(progress))
    assert steps(store.best_first(store.checkpoints(run.path), "error")) == [8, 10, 4]


def steps(folders):
    return [store.step_of(folder) for folder in folders]


def kept(run, **settings):
    store.remove_expired(run, CheckpointConfig(**settings))
    return steps(store.checkpoints(run.path))


@pytest.mark.parametrize(("metric", "order"), [("loss", [4, 8, 10, 2]), ("top1", [4, 6, 8, 10, 2]), ("top9", [])])
def test_best_comes_first_and_what_was_not_evaluated_is_left_out(run, metric, order):
    assert steps(store.best_first(store.checkpoints(run.path), metric)) == order


def test_damaged_progress_takes_no_place(run):
    (run.checkpoint(4) / "progress.json").write_text("{")
    assert steps(store.best_first(store.checkpoints(run.path), "loss")) == [8, 10, 2]


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, [0, 2, 4, 5, 6, 8, 10]),
        ({"keep_last": 1}, [0, 10]),
        ({"keep_last": 3}, [0, 6, 8, 10]),
        ({"keep_last": 9}, [0, 2, 4, 5, 6, 8, 10]),
        ({"keep_best": 1}, [0, 4, 10]),
        ({"keep_best": 2, "keep_last": 2}, [0, 4, 8, 10]),
        ({"keep_best": 2, "metric": "top1"}, [0, 4, 6, 10]),
    ],
)
def test_newest_best_and_requested_start_are_kept(run, settings, left):
    assert kept(run, **settings) == left
    assert steps(sorted(path for path in run.checkpoints.iterdir())) == left


def test_run_keeps_newest_and_best_and_saves_at_evaluations(tmp_path):
    settings = ["train.epochs=4", "checkpoint.every_epochs=0", "checkpoint.keep_best=1", "checkpoint.metric=top1"]
    assert carried_out(tmp_path / "run", *settings, "optimizer.lr=0.5") == 0
    run = RunDirectory(tmp_path / "run")
    best = json.loads(run.summary.read_text())["best_step"]["top1"]
    assert steps(store.checkpoints(run.path)) == sorted({best, 24})
    assert steps(store.best_first(store.checkpoints(run.path), "top1"))[0] == best
    assert all(store.problem(folder) is None for folder in run.checkpoints.iterdir())
