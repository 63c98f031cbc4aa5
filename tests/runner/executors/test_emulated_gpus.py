"""Stages on devices of their own, with an emulated GPU each and NCCL's rules between them, against the simulation."""

import contextlib
from dataclasses import replace

import pytest
from support import running_text
from support.compiled import compiled_job
from support.equal_bits import (
    REPLICATED,
    TIED,
    assert_same,
    both_ways,
    on_diagonal,
    replicated,
    runs_under,
    schedules_of,
)
from support.fake_gpu import logged_errors, logged_waits
from support.methods import DISTINCT, MethodCase
from support.worker_pool import distributed, job, simulated
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.methods.pipeoptim import PipeOptim
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.schedules.interleaved import Interleaved1F1B, InterleavedContinuous1F1B
from pipetrain.engine.schedules.looped_bfs import LoopedBFS
from pipetrain.engine.schedules.one_f_one_b_v import OneFOneBV
from pipetrain.engine.schedules.zero_bubble import ZBH1, ZBV


@pytest.fixture(autouse=True)
def _emulated(monkeypatch, tmp_path):
    monkeypatch.setenv("PIPETRAIN_EMULATED_GPUS", "1")
    monkeypatch.setenv("PIPETRAIN_EMULATOR_LOG", str(tmp_path / "waits"))
    monkeypatch.setenv("STRICT_NCCL_LATE_MS", "0.5")


def unfused(folder, method, stages, settings):
    """A job whose optimizer takes the same steps on every device: torch's fused ones round otherwise."""
    return job(folder, method, stages, **{**settings, "optimizer": {**settings.get("optimizer", {}), "foreach": False}})


def on_gpus(jobs):
    """The summaries of distributed runs with an emulated GPU for each process."""
    return distributed([replace(each, device="fakegpu") for each in jobs])


def check(folder, cases):
    """name -> (method, stages, settings): runs each on emulated GPUs and simulated; the summaries of the former."""

    pairs = both_ways([unfused(folder / name, *case) for name, case in cases.items()], on_gpus)
    results = {name: result for name, (result, _) in zip(cases, pairs, strict=True)}
    for name, result in results.items():
        if cases[name][1] > 1:
            assert result["transport"] == "nccl", name
            for stage in result["per_stage"]:
                assert 0 <= stage["idle_share"] <= 1, name
    return results


def microbatches(count, **settings):
    return {"train": {"microbatches": count, "epochs": 1}, **settings}


SELECTION = {
    "gpipe": ("gpipe", 3, microbatches(2)),
    "pipedream": ("pipedream", 2, microbatches(1)),
    "pipeoptim": ("pipeoptim", 3, microbatches(1)),
    "nf1b": ("i_timeprest", 2, microbatches(2)),
    "tied": ("gpipe", 2, {**TIED, **microbatches(2)}),
    "replicas": replicated((2, 1), "pipedream", 1),
    "alone": replicated((2, 2), "pipedream", 1, averaging={"average": "weights", "share": 0.3, "delay": 2}),
    "bytes": ("pipedream", 2, microbatches(1, dataset={"_target_": "support.stored_images.build"})),
}


@pytest.mark.slow
def test_stages_on_separate_gpus_equal_simulation(tmp_path):
    check(tmp_path, SELECTION)


@pytest.mark.parametrize("event", ["full_memory_of_stage_1", "kernels_loaded_in_every_forward"])
@pytest.mark.slow
def test_wait_for_the_whole_device_ends(tmp_path, monkeypatch, event):
    monkeypatch.setenv("PIPETRAIN_MUTANT", f"support.mutants:{event}")
    check(tmp_path, {name: SELECTION[name] for name in ("gpipe", "pipedream", "pipeoptim")})


@pytest.mark.slow
def test_page_locked_memory_that_is_always_new_delays_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPETRAIN_EMULATED_LOCKING", "1")
    text = "gpipe", 2, {**running_text.SECTIONS, "checkpoint": {"every_steps": 4}, **microbatches(1)}
    check(tmp_path, {"replicas": SELECTION["replicas"], "text": text})


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"method": "pipedream"}, {"method": "pipeoptim", "partition": {"replicas": [2, 1]}}], ids=str
)
def test_layers_are_compiled_before_the_stages_are_connected(tmp_path, monkeypatch, settings):
    monkeypatch.setenv("PIPETRAIN_MUTANT", "support.mutants:layers_are_compiled_as_they_are")
    settings = {**settings, "optimizer": {"foreach": False}}
    (found,) = on_gpus([compiled_job(tmp_path / "run", **settings)])
    assert list((tmp_path / "waits").glob("*.ahead"))
    assert not list((tmp_path / "waits").glob("*.late"))
    plain = simulated(compiled_job(tmp_path / "plain", compiled=False, **settings))
    assert found["weights_sha256"] == plain["weights_sha256"]


# -- faults that must be noticed ---------------------------------------------------------------------------------------


def run_mutant(monkeypatch, folder, name, case="pipedream"):
    monkeypatch.setenv("PIPETRAIN_MUTANT", f"support.mutants:{name}")
    monkeypatch.setenv("STRICT_NCCL_SECONDS", "4")
    return on_gpus([unfused(folder / name, *SELECTION[case])])[0]


@pytest.mark.slow
def test_posted_receives_deadlock_with_device_wide_wait(tmp_path, monkeypatch):
    with pytest.raises(ProcessExitedException):
        run_mutant(monkeypatch, tmp_path, "receives_posted_ahead_and_full_memory")
    assert "stuck on the host" in logged_errors(tmp_path / "waits")


@pytest.mark.slow
def test_page_locked_memory_taken_for_each_minibatch_deadlocks(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPETRAIN_EMULATED_LOCKING", "1")
    with pytest.raises(ProcessExitedException):
        run_mutant(monkeypatch, tmp_path, "feed_locks_memory_at_use")
    assert "stuck on the host" in logged_errors(tmp_path / "waits")


@pytest.mark.slow
def test_communicators_that_take_all_of_a_gpu_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPETRAIN_EMULATED_SMS", "24")
    on_gpus([unfused(tmp_path / "limited", *SELECTION["replicas"])])
    with pytest.raises(ProcessExitedException):
        run_mutant(monkeypatch, tmp_path, "communicators_as_nccl_has_them", "replicas")
    assert "thread blocks" in logged_errors(tmp_path / "waits")


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    ["dropped_wait", "sent_memory_changes", "memory_not_lent", "inputs_not_handed_over", "blocks_filled_too_early"],
)
def test_garbage_ends_the_run_or_gives_other_bits(tmp_path, monkeypatch, mutant):
    monkeypatch.setenv("STRICT_NCCL_LATE_MS", "5")
    result = None
    with contextlib.suppress(ProcessRaisedException, ProcessExitedException):  # the same run without it completes
        result = run_mutant(monkeypatch, tmp_path, mutant)
    if result is not None:
        expected = simulated(unfused(tmp_path / "expected", *SELECTION["pipedream"]))
        assert result["weights_sha256"] != expected["weights_sha256"]


# -- waits of the host -------------------------------------------------------------------------------------------------

BUDGETS = {
    "pipedream": {},
    "pipeoptim": {},
    "gpipe": {},
    "tied": {"pipetrain/engine/executors/tied_weights.py": 2, "pipetrain/engine/executors/messages/neighbors.py": 2},
    "replicas": {"pipetrain/engine/executors/replicas/overlapped_averaging.py": 3},
    "alone": {},
}
"""File -> waits of all hosts together in a step; each reads what decides how the run goes on.

Tied weights: which gradients there are, on both stages, and the norms of both, which go over Gloo. Replicas: which
gradients there are, on either replica of the stage, every second step.
"""


def waits_per_step(folder, monkeypatch, name, case):
    """File:line -> waits in a further step of a run; what a start, an evaluation and an end wait for is left out."""
    monkeypatch.setenv("PIPETRAIN_EMULATED_LOCKING", "1")
    method, stages, settings = case
    found = []
    for steps in (8, 16):
        log = folder / f"waits-{name}-{steps}"
        monkeypatch.setenv("PIPETRAIN_EMULATOR_LOG", str(log))
        dataset = {**settings.get("dataset", {}), "train": 4 * steps}
        on_gpus([unfused(folder / f"{name}-{steps}", method, stages, {**settings, "dataset": dataset})])
        found.append(logged_waits(log, "implicit", "pageable", "device", "nccl"))
    return {line: (count - found[0][line]) / 8 for line, count in found[1].items() if count > found[0][line]}


def over_budget(waits, budget):
    """The lines of files whose waits are more than the budget allows."""
    per_file = {}
    for line, count in waits.items():
        per_file.setdefault(line.partition(":")[0], []).append((line, count))
    return {file: lines for file, lines in per_file.items() if sum(count for _, count in lines) > budget.get(file, 0)}


@pytest.mark.parametrize(
    "name", ["pipedream", *(pytest.param(each, marks=pytest.mark.slow) for each in BUDGETS if each != "pipedream")]
)
def test_hosts_wait_in_a_step_only_where_the_algorithm_does(tmp_path, monkeypatch, name):
    waits = waits_per_step(tmp_path, monkeypatch, name, SELECTION[name])
    assert not over_budget(waits, BUDGETS[name])


FORMATS = {
    "bf16": {"activations": "bf16", "gradients": "bf16"},
    "fp8": {"activations": "fp8", "gradients": {"name": "fp8", "scale": "row"}},
    "integers": {"activations": "int4", "gradients": {"name": "int8", "bits": 5}},
    "topk": {"activations": {"name": "topk", "error_feedback": True}, "gradients": "topk"},
    "tah": {"activations": "tah"},
    "aq": {"activations": {"name": "aq", "plain_epochs": 0}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_messages_are_computed_on_the_device_without_waits(tmp_path, monkeypatch, name):
    case = "pipedream", 2, microbatches(1, messages={**FORMATS[name], "error_every": 2})
    assert not over_budget(waits_per_step(tmp_path, monkeypatch, name, case), BUDGETS["pipedream"])
    check(tmp_path, {name: case})


@pytest.mark.slow
def test_hosts_wait_for_no_lengths_of_sentences(tmp_path, monkeypatch):
    model = {"_target_": "pipetrain.zoo.models.gnmt.build", "layers": 4, "width": 8}
    data = {"_target_": "pipetrain.zoo.data.translation.synthetic.synthetic_en_de", "eval": 4, "vocabulary_size": 300}
    loss, evaluation = {"_target_": "pipetrain.engine.losses.TokenCrossEntropy"}, {"decode": False}
    case = "pipedream", 2, microbatches(1, model=model, dataset=data, loss=loss, eval=evaluation)
    assert not waits_per_step(tmp_path, monkeypatch, "gnmt", case)


@pytest.mark.parametrize(
    "mutant",
    [
        "losses_lock_memory_at_use",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("host_wait_in_every_forward", "device_wide_wait")),
    ],
)
def test_one_more_wait_in_a_step_is_over_the_budget(tmp_path, monkeypatch, mutant):
    monkeypatch.setenv("PIPETRAIN_MUTANT", f"support.mutants:{mutant}")
    waits = waits_per_step(tmp_path, monkeypatch, "pipedream", SELECTION["pipedream"])
    assert over_budget(waits, BUDGETS["pipedream"])


# -- the rest of the matrix --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_method_has_equal_bits_on_gpus(tmp_path, monkeypatch):
    """Under its own schedule; stages and microbatches take turns."""
    monkeypatch.setenv("STRICT_NCCL_LATE_MS", "0")
    check(tmp_path, {method: (method, 2 + k % 2, microbatches(1 + k // 2 % 4)) for k, method in enumerate(DISTINCT)})


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stages", [2, 3])
def test_every_method_and_schedule_has_equal_bits_on_gpus(tmp_path, monkeypatch, stages):
    """Each pair of a method and a schedule on a diagonal of (D, N)."""
    monkeypatch.setenv("STRICT_NCCL_LATE_MS", "0")
    pairs = [(method, schedule) for method in DISTINCT for schedule in schedules_of(method)]
    cases = {
        f"{method}-{schedule}-{n}": (method, stages, microbatches(n, schedule=schedules_of(method)[schedule]))
        for k, (method, schedule) in enumerate(pairs)
        for n in (1, 2, 3, 4)
        if on_diagonal(k, stages, n) and runs_under(schedules_of(method)[schedule], stages, n)
    }
    check(tmp_path, cases)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_replicas_have_equal_bits_on_gpus(tmp_path):
    diagonal = [case for k, case in enumerate(REPLICATED) if (k + k // 8) % 8 == 0]
    check(tmp_path, {"-".join(map(str, case)).replace(" ", ""): replicated(*case) for case in diagonal})


@pytest.mark.slow
def test_precision_clipping_and_recomputation_match_on_gpus(tmp_path):
    adam = {"_target_": "torch.optim.Adam", "lr": 1e-2, "clip_norm": 0.5}
    cases = {
        "clipped": ("gpipe", 3, microbatches(2, optimizer={"clip_norm": 0.5})),
        "clipped-by-stage": ("pipedream", 2, microbatches(1, optimizer={"clip_norm": 0.5})),
        "adam": ("pipeoptim", 2, microbatches(2, optimizer=adam)),
        "recompute": ("pipemare", 2, {"train": {"microbatches": 2, "epochs": 1, "recompute": True}}),
        "tied-flush": ("pipedream_flush", 2, {**TIED, **microbatches(2)}),
    }
    check(tmp_path, cases)


@pytest.mark.slow
def test_several_stages_and_split_backwards_match_on_gpus(tmp_path):
    drained, clipped = Synchronous(), {"optimizer": {"clip_norm": 0.5}}
    fp16 = {"train": {"microbatches": 2, "epochs": 1, "precision": "fp16"}}
    text = {**running_text.SECTIONS, "checkpoint": {"every_steps": 4}, **microbatches(2)}
    cases = {
        "interleaved": (MethodCase(drained, Interleaved1F1B()), 4, {**clipped, **microbatches(4)}),
        "three-chunks": (MethodCase(PipeOptim(), InterleavedContinuous1F1B(chunks=3)), 6, microbatches(2)),
        "breadth-first": (MethodCase(drained, LoopedBFS()), 4, {**TIED, **microbatches(2)}),
        "v": (MethodCase(PipeDream(), OneFOneBV()), 6, microbatches(2)),
        "tied-v": (MethodCase(drained, ZBV()), 6, {**TIED, **microbatches(3)}),
        "scaled-v": (MethodCase(drained, ZBV()), 4, {**TIED, **fp16}),
        "split": (MethodCase(drained, ZBH1()), 3, {**clipped, **microbatches(4)}),
        "text": (MethodCase(PipeDream(), OneFOneBV()), 4, text),
    }
    check(tmp_path, cases)


@pytest.mark.slow
def test_pause_in_an_evaluation_of_several_stages_ends_on_gpus(tmp_path):
    often = {"checkpoint": {"every_minutes": 1e-4}, "dataset": {"train": 60, "eval": 60}, "eval": {"batch_size": 2}}
    check(tmp_path, {"paused": (MethodCase(Synchronous(), Interleaved1F1B()), 6, {**microbatches(3), **often})})


@pytest.mark.slow
def test_varying_text_and_carried_state_match_on_gpus(tmp_path):
    sections = {**running_text.SECTIONS, "checkpoint": {"every_steps": 4}}
    check(tmp_path, {m: (m, 2, {**sections, **microbatches(1)}) for m in ("pipedream", "gpipe", "pipemare")})


@pytest.mark.slow
def test_gpu_run_resumes_with_equal_bits(tmp_path):
    saving = {"checkpoint": {"every_epochs": 1}}
    first = job(tmp_path / "whole", "pipeoptim", 2, **saving)
    whole = on_gpus([first])[0]
    rest = job(tmp_path / "rest", "pipeoptim", 2, resume=first.run.checkpoint(whole["steps"] // 2), **saving)
    resumed = on_gpus([rest])[0]
    assert_same(resumed, whole)


def test_processes_that_share_a_gpu_send_through_host_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPETRAIN_EMULATED_SHARED", "1")
    found = on_gpus([unfused(tmp_path / "shared", *SELECTION["pipedream"])])[0]
    assert (found["transport"], found["transport_reason"]) == ("gloo", "processes 0 and 1 share a GPU")
    assert found["weights_sha256"] == simulated(unfused(tmp_path / "s", *SELECTION["pipedream"]))["weights_sha256"]


def test_round_cut_short_between_replicas_that_share_a_gpu_equals_simulation(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPETRAIN_EMULATED_SHARED", "1")
    case = replicated((2, 1), "pipedream", 1, dataset={"train": 18})  # five minibatches: the second replica has two
    both_ways([unfused(tmp_path, *case)], on_gpus)


def test_torch_schedule_in_one_process_needs_no_nccl(tmp_path):
    schedule = {"_target_": "pipetrain.plugins.torch_schedules.schedules.Interleaved1F1B"}
    (found,) = on_gpus([unfused(tmp_path, "gpipe", 2, microbatches(2, schedule=schedule))])
    assert found["transport_reason"] == "one process"
    expected = simulated(unfused(tmp_path / "simulated", "gpipe", 2, microbatches(2)))
    assert found["final"] == pytest.approx(expected["final"], rel=1e-5)
