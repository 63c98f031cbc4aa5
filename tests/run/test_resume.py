"""A run that was stopped and resumed gives the bits of a run that was never stopped."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from support.cli import TINY, records, run, summary
from support.methods import DISTINCT, fitting
from support.worker_pool import distributed, job, settings, simulated

from pipetrain.errors import ConfigError
from pipetrain.run import checkpoint
from pipetrain.run.resume import checkpoint_to_resume
from pipetrain.tracking.run_directory import RunDirectory

EPOCHS = {"train": {"epochs": 4}, "checkpoint": {"every_epochs": 1}}


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [(m, optimizer) for m in DISTINCT for optimizer in ("SGD", "AdamW") if (m, optimizer) != ("spectrain", "AdamW")],
)
def test_resumed_simulated_run_has_the_bits_of_one_never_stopped(tmp_path, method, optimizer):
    train = {**EPOCHS["train"], "microbatches": 1 if fitting(method, 3, 1) else 3}
    momentum = {"momentum": 0.9} if optimizer == "SGD" else {}
    chosen = {"_target_": f"torch.optim.{optimizer}", "lr": 0.05, "weight_decay": 5e-4, **momentum}
    changes = {**EPOCHS, "optimizer": chosen, "train": train}
    whole = simulated(job(tmp_path / "whole", method, 3, **changes))
    half = checkpoint.checkpoints(tmp_path / "whole")[1]
    again = simulated(job(tmp_path / "again", method, 3, resume=half, **changes))
    for field in ("weights_sha256", "loss_sha256", "steps", "final", "best"):
        assert again[field] == whole[field], field


def test_hogwild_resumed_continues_its_delays(tmp_path):
    hogwild = {"_target_": "pipetrain.methods.hogwild.Hogwild", "seed": 3, "mean_delay": 1.5}
    changes = {**EPOCHS, "method": hogwild}
    whole = simulated(job(tmp_path / "whole", "naive_async", 3, **changes))
    half = checkpoint.checkpoints(tmp_path / "whole")[1]
    again = simulated(job(tmp_path / "again", "naive_async", 3, resume=half, **changes))
    assert (again["weights_sha256"], again["loss_sha256"]) == (whole["weights_sha256"], whole["loss_sha256"])
    plain = simulated(job(tmp_path / "plain", "naive_async", 3, **EPOCHS))
    assert plain["weights_sha256"] != whole["weights_sha256"]


def test_sgd_without_momentum_keeps_the_last_gradient_that_its_prediction_needs(tmp_path):
    changes = {"optimizer": {"momentum": 0.0}}
    whole = simulated(job(tmp_path / "whole", "pipeoptim", 3, **EPOCHS, **changes))
    half = checkpoint.checkpoints(tmp_path / "whole")[1]
    again = simulated(job(tmp_path / "again", "pipeoptim", 3, resume=half, **EPOCHS, **changes))
    assert again["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize("optimizer", ["NAdam", "RMSprop", "Adagrad", "nesterov"])
def test_last_gradient_that_a_prediction_needs_survives_resumption(tmp_path, optimizer):
    chosen = {"_target_": "torch.optim.SGD", "momentum": 0.9, "nesterov": True}
    if optimizer != "nesterov":
        chosen = {"_target_": f"torch.optim.{optimizer}"}
    changes = {**EPOCHS, "optimizer": {"lr": 0.01, **chosen}}
    whole = simulated(job(tmp_path / "whole", "pipeoptim", 3, **changes))
    half = checkpoint.checkpoints(tmp_path / "whole")[1]
    again = simulated(job(tmp_path / "again", "pipeoptim", 3, resume=half, **changes))
    assert (again["weights_sha256"], again["loss_sha256"]) == (whole["weights_sha256"], whole["loss_sha256"])


@pytest.mark.parametrize("method", [pytest.param("pipedream", marks=pytest.mark.slow), "pipeoptim"])
def test_resumed_distributed_run_has_the_bits_of_one_never_stopped(tmp_path, method):
    whole = simulated(job(tmp_path / "whole", method, 2, **EPOCHS))
    half = checkpoint.checkpoints(tmp_path / "whole")[0]
    (again,) = distributed([job(tmp_path / "again", method, 2, resume=half, **EPOCHS)])
    assert (again["weights_sha256"], again["loss_sha256"]) == (whole["weights_sha256"], whole["loss_sha256"])


def test_checkpoint_loads_into_another_partition(tmp_path):
    whole = simulated(job(tmp_path / "whole", "gpipe", 3, **EPOCHS))
    half = checkpoint.checkpoints(tmp_path / "whole")[1]
    again = simulated(job(tmp_path / "again", "gpipe", 2, resume=half, **EPOCHS))
    assert again["final"] == pytest.approx(whole["final"], rel=1e-5)


def test_checkpoints_are_written_every_so_many_steps_and_at_the_start(tmp_path):
    simulated(job(tmp_path / "run", "pipeoptim", 2, checkpoint={"every_steps": 4, "at_start": True}))
    run = RunDirectory(tmp_path / "run")
    assert checkpoint.checkpoints(run.path) == [run.checkpoint(step) for step in (0, 4, 8, 12)]


def test_checkpoint_still_being_written_is_ignored(tmp_path):
    simulated(job(tmp_path / "run", "pipeoptim", 2, **EPOCHS))
    folders = checkpoint.checkpoints(tmp_path / "run")
    folders[-1].rename(folders[-1].with_name(folders[-1].name + ".partial"))
    assert checkpoint.find(str(tmp_path / "run")) == folders[-2].resolve()


@pytest.mark.slow
def test_command_resumes_a_run_by_name_and_automatically(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(whole, *TINY, "executor=simulated")
    shutil.copytree(whole, stopped)
    shutil.rmtree(stopped / "checkpoints" / "step-00000010")
    (stopped / "summary.json").unlink()
    named = run(tmp_path / "named", *TINY, "executor=simulated", f"resume={stopped}")
    assert "continuing" in named.stdout
    assert summary(tmp_path / "named")["weights_sha256"] == summary(whole)["weights_sha256"]
    # in its own directory: the log goes on where the checkpoint stands
    run(stopped, *TINY, "resume=auto")
    assert summary(stopped)["weights_sha256"] == summary(whole)["weights_sha256"]
    steps = [record["step"] for record in records(stopped) if "lr" in record]
    assert steps == list(range(1, 11))
    run(tmp_path / "more", *TINY, "executor=simulated", f"resume={whole}", code=2)


def test_resume_auto_finds_the_unfinished_run_of_the_same_configuration(tmp_path):
    simulated(job(tmp_path / "day" / "a", "pipeoptim", 2, **EPOCHS))
    automatic = settings("pipeoptim", **EPOCHS, resume="auto")
    (tmp_path / "day" / "a" / "config.yaml").write_text(json.dumps(automatic.stored))
    fresh = RunDirectory(tmp_path / "day" / "b")
    assert checkpoint_to_resume(automatic, fresh) is None  # completed: nothing to go on with
    (tmp_path / "day" / "a" / "summary.json").unlink()
    newest = checkpoint_to_resume(automatic, fresh)
    assert newest == checkpoint.checkpoints(tmp_path / "day" / "a")[-1].resolve()
    assert checkpoint_to_resume(settings("pipeoptim", **EPOCHS, resume="auto", seed=9), fresh) is None
    named = settings("pipeoptim", **EPOCHS, resume=str(newest))
    with pytest.raises(ConfigError, match="was trained with model=small, but this run has model=lenet5"):
        checkpoint_to_resume(replace(named, choices={**named.choices, "model": "lenet5"}), fresh)


def test_checkpoint_holds_the_whole_models_state_under_its_own_names(tmp_path):
    from support import small_model

    simulated(job(tmp_path / "run", "pipeoptim", 3, checkpoint={"at_start": True}))
    start = checkpoint.model_state(checkpoint.checkpoints(tmp_path / "run")[0])
    torch.manual_seed(3)
    expected = small_model.build(1, 4).module.state_dict()
    assert start.keys() == expected.keys()
    assert all(torch.equal(start[name], value) for name, value in expected.items())
