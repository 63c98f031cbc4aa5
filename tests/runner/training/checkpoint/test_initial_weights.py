"""Runs that start from weights in a file."""

import argparse
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from support import complex_model, small_model, tied_model
from support.checkpoints import written
from support.cli import TINY, pipetrain_here, run_here, summary
from support.equal_bits import assert_same
from support.one_run import prepared
from support.pipelines import stage_of
from support.refusals import assert_refused
from support.worker_pool import distributed, job, settings, simulated
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.ties import untie
from pipetrain.graph.conversion import chain_of
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.initial_weights import initial_weights

TIED = {"_target_": "support.tied_model.build"}
SHARED = "encoder.linear.weight"


def state_of(model, seed=11):
    torch.manual_seed(seed)
    return {name: tensor.clone() for name, tensor in model.build(1, 4).module.state_dict().items()}


def found(path, model=small_model, **options):
    chosen = settings("gpipe", model={"weights": str(path), **options})
    chain = model.build(1, 4)
    if chosen.model.untie:
        untie(chain)
    return initial_weights(chosen.model, chain)


def started(made, weights):
    """The job with these weights, which saves them as step 0."""
    return replace(made, initial_weights=weights)


def at_start(made):
    return contents.named_state(store.at_step(made.run.path, 0))


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "model"), [(3, small_model), (3, tied_model)])
def test_both_executors_start_from_the_file(tmp_path, stages, model):
    state = state_of(model)
    save_file({name: tensor for name, tensor in state.items() if name != "decoder.weight"}, tmp_path / "w.safetensors")
    sections = {"model": {"_target_": f"{model.__name__}.build"}, "checkpoint": {"at_start": True}}
    weights = found(tmp_path / "w.safetensors", model)
    one, other = (started(job(tmp_path / name, "gpipe", stages, **sections), weights) for name in ("sim", "dist"))
    results = simulated(one), *distributed([other])
    for made in (one, other):
        saved = at_start(made)
        assert all(torch.equal(saved[name], tensor) for name, tensor in state.items())
    assert_same(*results)


def test_averages_start_from_the_file(tmp_path):
    torch.save(state_of(small_model), tmp_path / "w.pt")
    changes = {"checkpoint": {"at_start": True}, "train": {"ema": 0.9, "epochs": 1}}
    made = started(job(tmp_path / "run", "pipedream", 2, **changes), found(tmp_path / "w.pt"))
    simulated(made)
    start = contents.model_state(store.at_step(made.run.path, 0), averaged=True)
    assert all(torch.equal(start[name], tensor) for name, tensor in state_of(small_model).items())


def test_run_with_averages_gives_these_in_place_of_its_weights(tmp_path):
    state = state_of(small_model)
    averages = {name: tensor + 1 for name, tensor in state.items() if "norm" not in name}
    kinds = (("model", state), ("average", averages))
    written(tmp_path / "run", 4, {f"{kind}.{name}": tensor for kind, of in kinds for name, tensor in of.items()})
    stage = stage_of(*small_model.build(1, 4).layers)
    found(tmp_path / "run").load_into(stage)
    expected = state | averages
    assert all(torch.equal(expected[name], tensor) for name, tensor in stage.state().items())


def test_file_of_lower_precision_is_converted(tmp_path):
    state = state_of(small_model)
    half = {name: each.half() if each.is_floating_point() else each for name, each in state.items()}
    save_file(half, tmp_path / "w.safetensors")
    weights = found(tmp_path / "w.safetensors")
    assert weights.notes[0].endswith("tensors are loaded, float16 converted to float32")
    made = started(job(tmp_path / "run", "gpipe", 2, checkpoint={"at_start": True}, train={"max_steps": 1}), weights)
    simulated(made)
    assert all(torch.equal(saved, half[name].to(saved.dtype)) for name, saved in at_start(made).items())


def test_weights_that_do_not_fit_are_named_or_left_as_drawn(tmp_path):
    state = state_of(small_model)
    del state["1.norm.bias"]
    save_file({**state, "6.weight": torch.zeros(9, 6), "more": torch.zeros(1)}, tmp_path / "w.safetensors")
    faults = re.escape(
        "missing: 1.norm.bias; unexpected: more; different: 6.weight float32 (9, 6) instead of float32 (4, 6)"
    )
    assert_refused(rf"^model\.weights=\S+: {faults}; model\.strict=false loads 23", found, tmp_path / "w.safetensors")
    weights = found(tmp_path / "w.safetensors", strict=False)
    assert re.search(rf"^model\.strict=false: 2 keep the values drawn from the seed; {faults}$", weights.notes[1])
    options = {"checkpoint": {"at_start": True}, "train": {"max_steps": 1}}
    drawn, made = job(tmp_path / "drawn", "gpipe", 2, **options), job(tmp_path / "run", "gpipe", 2, **options)
    simulated(drawn)
    simulated(started(made, weights))
    initial, saved = at_start(drawn), at_start(made)
    for name in saved:
        assert torch.equal(saved[name], initial[name] if name in ("1.norm.bias", "6.weight") else state[name])


@pytest.mark.parametrize("prefix", ["module.", "module._orig_mod."])
def test_names_after_a_prefix_are_refused_with_the_cure(tmp_path, prefix):
    save_file({f"{prefix}{name}": each for name, each in state_of(small_model).items()}, tmp_path / "w.safetensors")
    cure = rf"names start with `{prefix}`, .*torch\.save\(model\.{prefix}state_dict\(\), FILE\)"
    assert_refused(cure, found, tmp_path / "w.safetensors", strict=False)


def test_long_lists_of_names_are_cut(tmp_path):
    save_file({f"x{i}": torch.zeros(1) for i in range(9)} | state_of(small_model), tmp_path / "w.safetensors")
    assert_refused(r": unexpected: x0, x1, x2 and 6 more; model", found, tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("model", "name", "form"),
    [(small_model, "6.weight", r"float32 \(4, 6\)"), (complex_model, "2.weight", r"complex64 \(3, 3\)")],
)
def test_integers_are_no_weights(tmp_path, model, name, form):
    state = state_of(model)
    save_file({**state, name: torch.ones(state[name].shape, dtype=torch.int8)}, tmp_path / "w.safetensors")
    assert_refused(rf"different: {name} int8 \([0-9, ]*\) instead of {form};", found, tmp_path / "w.safetensors", model)


def test_tied_weight_may_have_either_name_but_one_value(tmp_path):
    state = state_of(tied_model)
    value = state.pop(SHARED)
    save_file(state, tmp_path / "last.safetensors")
    assert found(tmp_path / "last.safetensors", tied_model).sources[SHARED] == "decoder.weight"
    save_file({**state, SHARED: value + 1}, tmp_path / "two.safetensors")
    assert_refused(rf": {SHARED} and decoder\.weight differ in it", found, tmp_path / "two.safetensors", tied_model)
    two = found(tmp_path / "two.safetensors", tied_model, untie=True).sources
    assert (two[SHARED], two["decoder.weight"]) == (SHARED, "decoder.weight")


@pytest.mark.parametrize("kept", [SHARED, "decoder.weight"])
def test_untied_weights_start_from_the_one_in_the_file(tmp_path, kept):
    state = state_of(tied_model)
    save_file({name: each for name, each in state.items() if name not in {SHARED, "decoder.weight"} - {kept}}, tmp_path / "w.safetensors")  # fmt: skip  # noqa: E501
    sources = found(tmp_path / "w.safetensors", tied_model, untie=True).sources
    assert sources[SHARED] == sources["decoder.weight"] == kept


def garbage(path):
    path.write_text("hello, world, this is text")


WRONG = [
    ("w.pt", lambda path: torch.save({"epoch": 1, "model": {"a": torch.ones(1)}}, path), "holds a dict, not a"),
    ("w.pt", lambda path: torch.save({}, path), "holds a dict, not a state dict"),
    ("w.pt", lambda path: torch.save(torch.ones(1), path), "holds a Tensor, not a state dict"),
    ("w.pth", lambda path: torch.save({"a": argparse.Namespace()}, path), "save only the tensors"),
    ("w.pt", lambda path: torch.save(nn.Linear(1, 1), path), "save only the tensors"),
    ("w.bin", garbage, "torch.load cannot read it"),
    ("w.safetensors", garbage, "not a safetensors file"),
    ("w.safetensors", lambda path: save_file({"a": torch.ones(1)}, path), "no tensor of it fits this model"),
    ("w.safetensors", lambda _path: None, "No such file or directory"),
    ("folder", lambda path: path.mkdir(), "no checkpoint here"),
]


@pytest.mark.parametrize(("name", "write", "message"), WRONG)
def test_other_files_are_refused_in_one_line(tmp_path, name, write, message):
    write(tmp_path / name)
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        found(tmp_path / name, strict=False)
    assert str(raised.value).startswith(f"model.weights={tmp_path / name}: ")
    assert "\n" not in str(raised.value)


def test_file_of_an_old_torch_is_read(tmp_path):
    torch.save(state_of(small_model), tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    assert len(found(tmp_path / "w.pt").sources) == len(state_of(small_model))


class Classifier(nn.Module):
    """Takes the names of its own weights."""

    def __init__(self, weights: str | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 4)
        if weights == "ONES":
            nn.init.ones_(self.linear.weight)

    def forward(self, images):
        return self.linear(images.flatten(1))


def test_name_of_weights_goes_to_a_constructor_that_knows_it():
    chosen = settings("gpipe", model={"_target_": f"{__name__}.Classifier", "weights": "ONES"}).model
    assert chosen.constructor_takes_weights
    assert initial_weights(chosen, chain_of(nn.Sequential(nn.Linear(1, 1)))) is None
    for path in ("ones.pt", "./ONES"):
        assert not replace(chosen, weights=path).constructor_takes_weights
    assert not settings("gpipe", model={"weights": "ONES"}).model.constructor_takes_weights


@pytest.mark.slow
def test_exports_and_runs_are_what_another_run_starts_from(tmp_path):
    run_here(tmp_path / "first", *TINY, "executor=simulated", "train.max_steps=3", "train.ema=0.5")
    for name in ("w.safetensors", "w.pt"):
        assert pipetrain_here("export", "first", "-o", name, cwd=tmp_path).returncode == 0
    options = (*TINY, "train.max_steps=2", "threads=1", "seed=5")
    hashes, origins = set(), []
    for number, (weights, executor) in enumerate(
        [("w.safetensors", "distributed"), ("w.pt", "simulated"), ("first", "simulated")]
    ):
        done = run_here(tmp_path / str(number), *options, f"model.weights={weights}", f"executor={executor}")
        assert f"model.weights={weights}: 10 of the model's 10 tensors are loaded" in done.stdout
        assert ("are loaded, averaged with train.ema=0.5" in done.stdout) == (weights == "first")
        made = summary(tmp_path / str(number))
        hashes.add((made["loss_sha256"], made["weights_sha256"]))
        origins.append(made["initial_weights"]["path"])
    assert len(hashes) == 1
    assert origins == [str(tmp_path / "w.safetensors"), str(tmp_path / "w.pt"), str(store.checkpoints(tmp_path / "first")[-1])]  # fmt: skip  # noqa: E501


def test_run_does_not_start_from_checkpoints_that_it_would_move_away(tmp_path):
    made = prepared(tmp_path)
    simulated(made)
    weights = {"weights": str(made.run.path)}
    assert_refused(r"model\.weights=.*/run: .*hydra\.run\.dir=.*/run", prepared, tmp_path, model=weights)
    assert prepared(tmp_path / "new", model=weights).initial_weights is not None


@pytest.mark.slow
def test_resumed_run_does_not_need_the_file(tmp_path):
    run_here(tmp_path / "first", *TINY, "executor=simulated", "train.max_steps=1")
    assert pipetrain_here("export", "first", "-o", "w.pt", cwd=tmp_path).returncode == 0
    options = (*TINY, "executor=simulated", "model.weights=w.pt")
    run_here(tmp_path / "whole", *options)
    run_here(tmp_path / "half", *options, "train.epochs=1")
    (tmp_path / "w.pt").unlink()
    run_here(tmp_path / "half", *options, "resume=auto")
    whole, half = summary(tmp_path / "whole"), summary(tmp_path / "half")
    for field in ("weights_sha256", "loss_sha256", "initial_weights"):
        assert whole[field] == half[field], field
    other = run_here(tmp_path / "other", *TINY, "executor=simulated", "model.weights=v.pt", "resume=half", code=2)
    assert "model.weights=w.pt, but this run has model.weights=v.pt" in other.stderr
    assert not (tmp_path / "other").exists()
