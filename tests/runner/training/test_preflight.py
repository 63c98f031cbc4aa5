"""What is found before a run starts, and what the processes are told."""

import gc
import os
import re
from unittest import mock

import pytest
import torch
from support.one_run import EVEN, prepared
from support.quick_cases import every
from support.refusals import assert_refused
from support.worker_pool import simulated
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.runner.training.components.machine import device_of
from pipetrain.zoo.data.images.common import ImageDataset
from pipetrain.zoo.decoding import Generation, SpecialTokens

FINEGRAINED = {"_target_": "pipetrain.runner.partition.finegrained.FineGrained", "stages": 5}


def normed(channels, classes):
    """A model whose first weight is computed in the forward."""
    first = nn.utils.parametrizations.weight_norm(nn.Linear(64 * channels, 6))
    layers = [nn.Flatten(), first, nn.ReLU(), nn.Linear(6, classes)]
    return LayerChain(nn.ModuleList(layers), layers)


def test_prepared_run_has_a_plan_and_no_files(tmp_path):
    job = prepared(tmp_path)
    assert sum(stage.parameters for stage in job.plan.stages) == job.plan.to_json()["parameters"]
    assert (job.num_stages, job.timetable.total_steps, job.resume) == (2, 12, None)
    assert (job.stage_devices, job.start_step, job.notes) == (["cpu", "cpu"], 0, [])
    assert not (tmp_path / "run").exists()


TIED = {"_target_": "support.tied_model.build"}


def test_prepared_run_keeps_no_weight(tmp_path):
    def weights():
        gc.collect()
        return sum(isinstance(each, nn.Parameter) for each in gc.get_objects())

    before = weights()
    made = prepared(tmp_path)
    assert (made.num_stages, weights()) == (2, before)


def test_tied_weights_are_cut_under_synchronous_method(tmp_path):
    even = {**EVEN, "stages": 4}
    found = prepared(tmp_path, "gpipe", model=TIED, partition=even, train={"microbatches": 2})
    assert len(found.notes) == 1
    assert found.notes[0].startswith("encoder.linear.weight is in stages 0 and 3")
    assert found.plan.to_json()["parameters"] == 12 * 65 + 4 * 12 * 13 + 65 * 4


def test_tied_weights_stay_together_under_asynchronous_method(tmp_path):
    assert prepared(tmp_path, model=TIED).plan.bounds == [(0, 1), (1, 7)]
    fine = {"partition": FINEGRAINED, "executor": {"name": "simulated"}}
    assert prepared(tmp_path, "gpipe", model=TIED, **fine).plan.finegrained


def test_untied_weights_may_be_anywhere_and_are_named(tmp_path):
    found = prepared(tmp_path, model={**TIED, "untie": True}, partition={**EVEN, "stages": 4})
    assert re.match(r"model.untie=true: decoder.weight .* encoder.linear.weight$", found.notes[0])
    unchanged = prepared(tmp_path, model={"_target_": "support.small_model.build", "untie": True})
    assert [note.partition(",")[0] for note in unchanged.notes] == ["model.untie=true: no layers share a weight"]


def test_warns_if_model_cannot_generate_dataset_texts(tmp_path, monkeypatch):
    texts = Generation([], [], str, SpecialTokens(beginning=1, end=2), longest=3)
    monkeypatch.setattr(ImageDataset, "decoding", texts, raising=False)
    (note,) = prepared(tmp_path).notes
    assert re.match("warning: evaluations generate no texts: .*begin.*step", note)
    assert prepared(tmp_path, eval={"decode": False}).notes == []
    assert_refused(r"train.target=.*no metric bleu; .* loss, top1", prepared, tmp_path, train={"target": {"bleu": 25}})


def test_user_is_told_who_decides_about_a_step_of_a_scaled_loss(tmp_path):
    told = {case: prepared(tmp_path, case, train={"precision": "fp16", "microbatches": 2}).notes for case in DECIDES}
    assert all(any(DECIDES[case] in note for note in notes) for case, notes in told.items())


class NotOnCPU(nn.Linear):
    """A layer that a CPU computes in fp32 alone."""

    def forward(self, x):
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("not implemented for 'Half'")
        return super().forward(x)


def not_on_cpu(channels, classes):
    return nn.Sequential(nn.Flatten(), NotOnCPU(64 * channels, 6), nn.Linear(6, classes))


@pytest.mark.parametrize("case", ["gpipe", "pipeoptim"])
def test_precision_that_only_the_cpu_lacks_is_no_obstacle_on_a_gpu(tmp_path, monkeypatch, case):
    changes = {"model": {"_target_": f"{__name__}.not_on_cpu"}, "train": {"precision": "fp16"}}
    assert_refused(r"train.precision=fp16: .*'Half'.*; fp32 works", prepared, tmp_path, case, **changes)
    monkeypatch.setattr("pipetrain.runner.training.preflight.device_of", lambda _device: "cuda")
    assert prepared(tmp_path, case, **changes, executor={"name": "simulated"}).device == "cuda"


DECIDES = {"gpipe": "skipped by all stages alike", "pipedream": "skipped by each stage by itself"}


def test_compiled_layers_casting_other_weights_are_refused(tmp_path, monkeypatch):
    train = {"compile": True, "precision": "bf16"}
    prepared(tmp_path, "pipedream", train=train)
    assert_refused(r"train\.compile=true: .*bf16 .*method=pipeoptim", prepared, tmp_path, "pipeoptim", train=train)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert_refused(r"train\.compile=true: .*no-such-compiler", prepared, tmp_path, "pipedream", train={"compile": True})


def test_cores_are_shared_among_processes_unless_threads_are_set(tmp_path, monkeypatch):
    monkeypatch.setattr("pipetrain.runner.training.preflight.usable_cores", lambda: 9)
    assert prepared(tmp_path).threads == 4
    assert prepared(tmp_path, threads=3).threads == 3
    fine = prepared(tmp_path, partition=FINEGRAINED, executor={"name": "simulated"})
    assert (fine.threads, fine.plan.finegrained, fine.num_stages) == (9, True, 5)


def test_reports_clipping_per_stage_and_dropped_samples(tmp_path):
    notes = prepared(tmp_path, optimizer={"clip_norm": 0.5}, train={"microbatches": 3}).notes
    assert len(notes) == 2
    assert re.match("the last 2 samples .*: fewer than train.microbatches=3$", notes[0])
    assert re.match("gradients are clipped to optimizer.clip_norm=0.5 per stage", notes[1])
    (note,) = prepared(tmp_path, "gpipe", optimizer={"clip_norm": 0.5}, train={"microbatches": 2}).notes
    assert re.match("gradients are clipped to optimizer.clip_norm=0.5 over all stages", note)


def test_warns_of_computed_weights_if_backward_reads_others(tmp_path):
    model = {"_target_": f"{__name__}.normed"}
    (note,) = prepared(tmp_path, "pipemare", model=model).notes
    assert re.match("warning: layer 1 saves a tensor derived from its weights; .*method=pipemare", note)
    assert prepared(tmp_path, "pipedream", model=model).notes == []


ONE_STAGE = {**EVEN, "stages": 1}


@pytest.mark.parametrize("case", every(2, ["gpipe", "pipedream_flush"]))
def test_warns_if_one_microbatch_does_not_fill_pipeline(tmp_path, case):
    (note,) = prepared(tmp_path, case).notes
    assert re.match(r"warning: train.microbatches=1: .*schedule=\w+ .*; set train.microbatches=2 ", note)
    assert prepared(tmp_path, case, train={"microbatches": 2}).notes == []
    assert prepared(tmp_path, case, partition=ONE_STAGE).notes == []


@pytest.mark.parametrize("case", every(3, ["sequential", "pipedream", "pipemare"]))
def test_does_not_warn_if_microbatches_do_not_fill_pipeline(tmp_path, case):
    assert prepared(tmp_path, case).notes == []


def test_link_that_cannot_be_slowed_is_refused_before_start(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPETRAIN_LINK_GIGABYTES_PER_S", "0")
    with pytest.raises(ConfigError, match=r"^PIPETRAIN_LINK_GIGABYTES_PER_S=0: "):
        prepared(tmp_path, "gpipe", executor={"name": "distributed"})


def test_run_that_is_over_cannot_be_resumed_without_more_steps(tmp_path):
    simulated(prepared(tmp_path))
    resume = str(tmp_path / "run")
    assert_refused(r"at step 12, .*at step 12; raise train.epochs", prepared, tmp_path, resume=resume)
    longer = prepared(tmp_path, resume=resume, train={"epochs": 3})
    assert (longer.start_step, longer.resume.name) == (12, "step-00000012")


def test_device_is_cuda_only_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (device_of("auto"), device_of("cpu")) == ("cpu", "cpu")
    assert_refused("device=cuda: .*; device=cpu works", device_of, "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (device_of("auto"), device_of("cuda"), device_of("cpu")) == ("cuda", "cuda", "cpu")


def test_outer_launchers_process_sets_cuda_variables_before_it_looks_for_devices(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen.append("PYTORCH_ALLOC_CONF" in os.environ))
    with mock.patch.dict(os.environ, {"RANK": "0"}):
        prepared(tmp_path, device="auto")
    assert seen[0]
