"""Runs whose messages have a format."""

from dataclasses import replace

import pytest
from support.equal_bits import TIED, assert_same, both_ways, replicated, same_resumed
from support.methods import MethodCase
from support.one_run import EVEN, prepared
from support.worker_pool import distributed, job, phase, plan_of, settings, simulated

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.methods.pipeoptim import PipeOptim
from pipetrain.engine.schedules import Placement
from pipetrain.engine.schedules.one_f_one_b_v import OneFOneBV
from pipetrain.runner.terminal.run_tables import summary_lines
from pipetrain.runner.tracking.records import OF_MESSAGES, read_records
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.trackers.points import points_of
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.components.messages import links_without_state
from pipetrain.zoo.messages.ends import StageEnds

FORMATS = {
    "bf16": {"activations": "bf16", "gradients": "bf16"},
    "fp8": {"activations": {"name": "fp8", "scale": "row"}, "gradients": "fp8"},
    "int8": {"activations": "int8", "gradients": "int8"},
    "int4": {"activations": "int4", "gradients": {"name": "int4", "rounding": "stochastic", "group": 7}},
    "topk": {"activations": {"name": "topk", "error_feedback": True}, "gradients": "topk"},
    "tah": {"activations": {"name": "tah", "tile": 4}},
    "aq": {"activations": {"name": "aq", "rounding": "stochastic"}},
}
CASES = {
    "pipedream": "pipedream",
    "pipeoptim": "pipeoptim",
    "gpipe": "gpipe",
    "1f1b_v": MethodCase(PipeOptim(), OneFOneBV()),
}


def messages(name, **more):
    return {"messages": {**FORMATS[name], "error_every": 2, **more}}


def jobs_of(folder, formats, cases, stages, **changes):
    return [
        job(folder / f"{name}-{case}-{D}", CASES[case], D, **messages(name), train={"microbatches": 2}, **changes)
        for name in formats
        for case in cases
        for D in stages
        if case != "1f1b_v" or D % 2 == 0
    ]


def test_both_executors_have_equal_bits(tmp_path):
    both = {**FORMATS["aq"], "gradients": "topk"}
    both_ways([job(tmp_path / "run", "pipeoptim", 2, messages=both, train={"microbatches": 2})])


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_both_executors_have_equal_bits_with_every_method(tmp_path, name):
    both_ways(jobs_of(tmp_path, [name], CASES, [2, 3, 4]))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_resumed_run_has_the_same_bits(tmp_path, name):
    changes = {"checkpoint": {"every_epochs": 1}, "train": {"microbatches": 2}}
    whole = same_resumed(tmp_path, "pipeoptim", 3, **messages(name), **changes)
    half = store.checkpoints(tmp_path / "whole")[0]
    (again,) = distributed([job(tmp_path / "apart", "pipeoptim", 3, resume=half, **messages(name), **changes)])
    assert_same(again, whole)


def test_state_of_links_is_in_checkpoints_and_is_needed(tmp_path):
    changes = {**messages("topk"), "checkpoint": {"every_epochs": 1}}
    whole = same_resumed(tmp_path, "pipedream", 3, **changes)
    half = store.checkpoints(tmp_path / "whole")[0]
    assert contents.ends_of_links(half) == {
        f"{cut}.{direction}.sent.TopK" for cut in (2, 5) for direction in ("activations", "gradients")
    }
    elsewhere = replace(job(tmp_path / "other", "pipedream", 3, resume=half, **changes), plan=plan_of([(0, 2), (2, 7)]))
    assert simulated(elsewhere)["status"] == "completed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageEnds, "load_state", lambda _ends, _saved: None)
        forgetful = simulated(job(tmp_path / "forgetful", "pipedream", 3, resume=half, **changes))
    assert forgetful["weights_sha256"] != whole["weights_sha256"]


def test_new_cuts_are_named():
    found, placement = settings("pipedream", **messages("aq")), Placement.one_each(3)
    plan, saved = plan_of([(0, 2), (2, 5), (5, 7)]), {"2.activations.sent.AqSgd"}
    (note,) = links_without_state(found, plan, placement, saved)
    assert note.startswith("messages.activations=aq: the checkpoint has no state for a cut before layer 5;")
    assert links_without_state(found, plan, placement, {*saved, "5.activations.sent.AqSgd"}) == []
    assert links_without_state(settings("pipedream", **messages("int8")), plan, placement, set()) == []


OTHERS = {
    "phases": ("gpipe", {"phases": [phase("gpipe", steps=4), phase("pipeoptim")]}),
    "bf16": ("pipedream", {"train": {"precision": "bf16", "ema": 0.9, "microbatches": 2}}),
    "fp16": ("pipedream", {"train": {"precision": "fp16", "microbatches": 2}, "optimizer": {"clip_norm": 0.5}}),
    "fp16 together": ("gpipe", {"train": {"precision": "fp16", "microbatches": 3}}),
    "whole backward": ("timeprest", {"train": {"microbatches": 2}}),
    "recomputed": ("pipedream", {"train": {"recompute": True}}),
    "tied": ("gpipe", TIED),
    "1f1b_v": (CASES["1f1b_v"], {"optimizer": {"clip_norm": 0.5}}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_what_else_a_run_does_goes_on(tmp_path, name):
    case, changes = OTHERS[name]
    stages = 2 if name == "tied" else 4
    both_ways(
        [
            job(tmp_path / each, case, stages, **messages(each, evaluation=True), **changes)
            for each in ("int4", "topk", "aq")
        ]
    )


@pytest.mark.slow
def test_formats_without_state_take_replicas(tmp_path):
    method, stages, changes = replicated((2, 1), "pipedream", 2, **messages("int4"))
    both_ways([job(tmp_path / "run", method, stages, **changes)])


def test_a_recomputation_across_stages_receives_what_the_forward_did(tmp_path):
    runs = [
        simulated(job(tmp_path / str(k), "gpipe", 3, **messages("int4"), train={"recompute_boundaries": boundaries}))
        for k, boundaries in enumerate((None, [0]))
    ]
    assert_same(*runs)


def test_evaluations_are_plain_unless_asked(tmp_path):
    plain, asked = (
        simulated(job(tmp_path / str(asked), "pipedream", 3, **messages("int4", evaluation=asked)))
        for asked in (False, True)
    )
    assert plain["weights_sha256"] == asked["weights_sha256"]
    assert plain["final"] != asked["final"]


def test_a_run_of_plain_messages_makes_no_end_and_measures_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(StageEnds, "__init__", None)
    found = simulated(job(tmp_path / "run", "pipedream", 3))
    assert found["status"] == "completed"
    assert not any(name in stage for stage in found["per_stage"] for name in OF_MESSAGES)
    assert not any(
        field.endswith(OF_MESSAGES) for record in read_records(RunDirectory(tmp_path / "run")) for field in record
    )


def test_summary_records_and_table_have_the_bytes(tmp_path):
    found = simulated(job(tmp_path / "run", "pipedream", 3, **messages("int8"), train={"microbatches": 2}))
    stages = found["per_stage"]
    assert ["activations_bytes" in stage for stage in stages] == [True, True, False]
    assert ["gradients_bytes" in stage for stage in stages] == [False, True, True]
    for name in ("activations", "gradients"):
        assert 0.2 < stages[1][f"{name}_bytes"] / stages[1][f"{name}_plain_bytes"] < 0.6
        assert 0 < stages[1][f"{name}_error"] < 0.02
    (last,) = [each for each in read_records(RunDirectory(tmp_path / "run")) if each["kind"] == "epoch"][-1:]
    assert last["stage1_activations_bytes"] == stages[1]["activations_bytes"]
    assert points_of(last)["messages_activations_MB/stage1"] == pytest.approx(stages[1]["activations_bytes"] / 1e6)
    table = "\n".join(summary_lines(found))
    assert "activations sent" in table
    assert "% of plain, error 0.00" in table


STATEFUL = {"messages": {"activations": "aq"}}
REFUSED = {
    "replicas": (
        "pipedream",
        {**STATEFUL, "partition": {**EVEN, "replicas": [2, 1]}},
        r"messages\.activations=aq with partition\.rep",
    ),
    "segments": (
        "gpipe",
        {**STATEFUL, "train": {"recompute_boundaries": [0]}, "executor": {"name": "simulated"}},
        r"messages\.activations=aq with train\.recompute_boundaries",
    ),
    "finegrained": (
        "pipedream",
        {
            "messages": {"gradients": "int8"},
            "partition": {"_target_": "pipetrain.runner.partition.finegrained.FineGrained", "stages": 5},
            "executor": {"name": "simulated"},
        },
        r"messages\.gradients=int8: with partition=finegrained no stage sends",
    ),
    "torch": (
        "gpipe",
        {
            "messages": {"gradients": "int8"},
            "partition": {**EVEN, "stages": 4},
            "schedule": {"_target_": "pipetrain.plugins.torch_schedules.schedules.Interleaved1F1B", "chunks": 2},
            "train": {"microbatches": 2},
        },
        r"messages\.gradients=int8: schedule=.* is run by torch\.distributed\.pipelining",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pipelines_that_cannot_have_a_format_are_refused(tmp_path, name):
    case, changes, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, case, **changes)


def test_preflight_finds_what_takes_a_gradient(tmp_path):
    cut = {"_target_": "pipetrain.runner.partition.rules.Explicit", "boundaries": [3]}
    found = prepared(tmp_path, **messages("int8"), partition=cut)
    assert found.takes_gradient == {3: (True, True, False, False)}
    assert prepared(tmp_path, partition=cut).takes_gradient == {}


@pytest.mark.parametrize("replicas", [None, [2]])
def test_one_stage_sends_nothing(tmp_path, replicas):
    partition = {**EVEN, "stages": 1, "replicas": replicas}
    notes = prepared(tmp_path, **messages("int8"), partition=partition).notes
    assert any("no stage sends messages to another process" in note for note in notes)
