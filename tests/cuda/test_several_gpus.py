"""NCCL between processes, on a CUDA device each where there are enough.

Where there are too few, processes share one. NCCL then treats them as running on different machines, and connects them
over the network, by the same calls in the same order. Neither speed nor failures are then those of several devices:
over the network, NCCL detects that a peer has ended.
"""

import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from process_tree import is_alive, workers
from support import gpu_layers, running_text, worker_pool
from support.cli import TINY, WRAPPER, arguments, environment, fails, run, summary
from support.equal_bits import REPLICATED, TIED, replicated, schedules_of
from support.methods import DISTINCT, fitting
from support.processes import needs_proc
from support.waiting import eventually
from support.worker_pool import job, plan_of, simulated

from pipetrain.planning.profiling.link_speed import measured_link

COUNT = torch.cuda.device_count()
EXACT = ("deterministic=true", "train.tf32=false")
ALONE = "each process has a GPU of its own"
SHARED = f"processes 0 and {COUNT} share a GPU, but differ in NCCL_HOSTID"

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(COUNT == 0, reason="needs a CUDA device"), pytest.mark.timeout(900)]


def needs(devices: int) -> pytest.MarkDecorator:
    """Skips a test where there are fewer CUDA devices."""
    return pytest.mark.skipif(devices > COUNT, reason=f"needs {devices} CUDA devices; torch finds {COUNT}")


def distributed(jobs):
    """The summaries of distributed runs over NCCL, on devices of their own if there are enough."""
    enough = max(map(worker_pool.num_processes, jobs)) <= COUNT
    return worker_pool.distributed(jobs, None if enough else gpu_layers.on_a_machine_of_its_own)


def reason(processes):
    """Why so many processes use NCCL."""
    return ALONE if processes <= COUNT else SHARED


@pytest.fixture(autouse=True)
def _two_workers_use_nccl(monkeypatch):
    """Has two workers of a command use NCCL even where they share a device."""
    if COUNT < 2:
        monkeypatch.setenv(WRAPPER, "support.shared_gpu_cli")


def check(folder, cases):
    """name -> (method, stages, settings): runs each over NCCL, and simulated on the first GPU; the former's summaries.
    Both compute with deterministic operations and without TF32, and must have equal bits.
    """

    def made(name, kind):
        method, stages, settings = cases[name]
        train = {"tf32": False, **settings.get("train", {})}
        return job(folder / f"{name}-{kind}", method, stages, **{**settings, "train": train, "deterministic": True})

    jobs = {name: made(name, "distributed") for name in cases}
    results = dict(zip(cases, distributed([*jobs.values()]), strict=True))
    for name, result in results.items():
        why = reason(worker_pool.num_processes(jobs[name]))
        assert (result["transport"], result["transport_reason"]) == ("nccl", why), name
        expected = simulated(made(name, "simulated"))
        for field in ("weights_sha256", "loss_sha256", "steps", "final", "best"):
            assert result[field] == expected[field], f"{name}: {field}"
        for ours, theirs in zip(result["per_stage"], expected["per_stage"], strict=True):
            for measured in ("weight_versions_max", "weight_bytes_peak", "forward_staleness", "backward_staleness"):
                assert ours.get(measured) == theirs.get(measured), f"{name}: {measured}"
            assert 0 <= ours["idle_share"] <= 1, name
    return results


def microbatches(count, **settings):
    return {"train": {"microbatches": count, "epochs": 1}, **settings}


# -- equal bits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_method_and_schedule_equals_simulation(tmp_path, stages, n):
    """With an evaluation after each of two epochs; each pair of a method and a schedule with one of the numbers N."""
    pairs = [(method, schedule) for method in DISTINCT for schedule in schedules_of(method)]
    check(
        tmp_path,
        {
            f"{method}-{schedule}": (
                method,
                stages,
                {"schedule": schedules_of(method)[schedule], "train": {"microbatches": n}},
            )
            for k, (method, schedule) in enumerate(pairs)
            if (k + stages + n) % 4 == 0 and fitting(method, stages, n)
        },
    )


@pytest.mark.parametrize("counts", [(2, 1), (1, 2), (2, 2), (3, 1)], ids=str)
def test_replicas_have_the_bits_of_the_simulation(tmp_path, counts):
    cases = [case for case in REPLICATED if case[0] == counts]
    assert cases
    check(tmp_path, {f"{method}-{n}": replicated(counts, method, n) for _, method, n in cases})


@pytest.mark.parametrize("counts", [(2,), (2, 2)], ids=str)
def test_replicas_that_train_alone_have_the_bits_of_the_simulation(tmp_path, counts):
    cases = {}
    for method, delay in (("pipedream", 2), ("pipeoptim", 0), ("gpipe", 1)):
        averaging = {"average": "weights", "share": 0.3, "delay": delay}
        cases[f"{method}-{delay}"] = replicated(counts, method, 1, averaging=averaging)
    check(tmp_path, cases)


@pytest.mark.parametrize("stages", [2, 3])
def test_ties_clipping_and_precision_equal_simulation(tmp_path, stages):
    adam = {"_target_": "torch.optim.Adam", "lr": 1e-2, "clip_norm": 0.5}
    two = {"microbatches": 2, "epochs": 1}
    cases = {
        "tied": ("gpipe", stages, {**TIED, **microbatches(2)}),
        "tied-flush": ("pipedream_flush", stages, {**TIED, **microbatches(2)}),
        "clipped": ("gpipe", stages, microbatches(2, optimizer={"clip_norm": 0.5})),
        "clipped-by-stage": ("pipedream", stages, microbatches(1, optimizer={"clip_norm": 0.5})),
        "adam": ("pipeoptim", stages, microbatches(2, optimizer=adam)),
        "recompute": ("pipemare", stages, {"train": {**two, "recompute": True}}),
        "bf16": ("pipeoptim", stages, {"train": {**two, "precision": "bf16"}}),
        "fp16": ("gpipe", stages, {"train": {**two, "precision": "fp16"}}),
        "fp16-asynchronous": ("pipedream", stages, {"train": {**two, "precision": "fp16"}}),
        "channels-last": ("naive_async", stages, {"train": {**two, "channels_last": True}}),
    }
    check(tmp_path, cases)


def test_text_with_announced_shapes_equals_simulation(tmp_path):
    sections = {**running_text.SECTIONS, "checkpoint": {"every_steps": 4}}
    check(tmp_path, {m: (m, 2, {**sections, **microbatches(1)}) for m in ("pipedream", "gpipe", "pipemare")})


def same_as_simulated(folder, *words, fields=("weights_sha256",)):
    """Runs a command over NCCL, and simulated: the summaries agree in these fields."""
    run(folder / "distributed", *words)
    run(folder / "simulated", *words, "executor=simulated")
    ours, theirs = summary(folder / "distributed"), summary(folder / "simulated")
    assert (ours["transport"], theirs["transport"]) == ("nccl", "none")
    for field in fields:
        assert ours[field] == theirs[field], field


@pytest.mark.parametrize("method", ["gpipe", "pipeoptim"])
def test_padded_text_has_the_bits_of_the_simulation(tmp_path, method):
    words = (
        "model=gnmt8", "model.layers=4", "model.width=16", "dataset.train=64", "dataset.eval=16",
        "dataset.vocabulary_size=300", "train.batch_size=8", "train.microbatches=2", "train.epochs=1",
        "eval.decode=false", "device=cuda", "partition.stages=2", f"method={method}", *EXACT,
    )  # fmt: skip
    same_as_simulated(tmp_path, *words, fields=("weights_sha256", "loss_sha256", "final"))


def test_compiled_layers_have_the_bits_of_the_simulation(tmp_path):
    compiled = {
        "model": {**TIED["model"], "untie": True},
        "dataset": {"train": 20, "eval": 4},  # minibatches of one size: each is compiled anew
        "train": {"compile": True},
    }
    check(tmp_path, {method: (method, 2, compiled) for method in ("pipedream", "pipeoptim")})


@pytest.mark.parametrize("stages", [2, 3])
def test_device_sync_in_each_forward_keeps_bits_without_deadlock(tmp_path, stages):
    """As loading a kernel, tuning one, and an allocator without free memory do."""
    waiting = {"model": {"_target_": "support.gpu_layers.waiting"}}
    methods = ("gpipe", "pipedream", "pipeoptim", "pipemare")
    check(tmp_path, {method: (method, stages, {**waiting, **microbatches(2)}) for method in methods})


@pytest.mark.parametrize(
    ("name", "value"),
    [("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("NCCL_MAX_CTAS", "1"),
     ("NCCL_MAX_CTAS", "8")],
)  # fmt: skip
def test_few_queues_or_thread_blocks_keep_bits_without_deadlock(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    same_as_simulated(tmp_path, *TINY, "device=cuda", "partition.stages=2", "method=pipedream", *EXACT)


# -- pause and resume --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["pipeoptim", "pipemare", "gpipe"])
def test_run_goes_on_from_its_checkpoint_with_the_same_bits(tmp_path, method):
    saving = {"checkpoint": {"every_epochs": 1}, "deterministic": True, "train": {"tf32": False}}
    begun = job(tmp_path / "whole", method, 2, **saving)
    (whole,) = distributed([begun])
    middle = begun.run.checkpoint(whole["steps"] // 2)
    (resumed,) = distributed([job(tmp_path / "rest", method, 2, resume=middle, **saving)])
    assert (whole["transport"], resumed["transport"]) == ("nccl", "nccl")
    for field in ("weights_sha256", "loss_sha256"):
        assert resumed[field] == whole[field], field


@needs_proc
def test_run_that_a_signal_pauses_goes_on_with_the_same_bits(tmp_path):
    words = (
        *TINY, "dataset.limit=3200", "train.epochs=20", "method=gpipe", "train.microbatches=4", "device=cuda",
        "partition.stages=2", "eval.every_epochs=20", *EXACT,
    )  # fmt: skip
    started = start(tmp_path, *words)
    metrics = tmp_path / "run" / "metrics.jsonl"
    eventually(lambda: metrics.exists() and metrics.read_text().count("interval") > 4, seconds=180)
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=60)
    assert started.returncode == 75
    assert 5 <= summary(tmp_path / "run")["steps"] < 2000
    run(tmp_path / "run", *words, "resume=auto", timeout=300)
    run(tmp_path / "whole", *words, "executor=simulated", timeout=300)
    continued, whole = summary(tmp_path / "run"), summary(tmp_path / "whole")
    for field in ("status", "steps", "weights_sha256", "loss_sha256"):
        assert continued[field] == whole[field], field


def start(folder, *words):
    """A run in the folder `run` of `folder`, still under way."""
    return subprocess.Popen(
        arguments("run", f"hydra.run.dir={folder / 'run'}", *words), cwd=folder, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


# -- which devices there are -------------------------------------------------------------------------------------------


def test_processes_seeing_one_device_each_communicate_by_nccl(tmp_path):
    """As tasks of Slurm do with `--gpus-per-task=1`."""
    seen = (os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")[:COUNT] * 2)[:2]
    hosts = "" if COUNT > 1 else "NCCL_HOSTID=$RANK "
    words = (*TINY, "device=cuda", "partition.stages=2", "method=pipeoptim", *EXACT)
    choose = "seen=($SEEN); " + hosts + 'CUDA_VISIBLE_DEVICES=${seen[$LOCAL_RANK]} exec "$0" "$@"'
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python", "bash", "-c")
    done = subprocess.run(
        [arguments()[0], *torchrun, choose, *arguments("run", f"hydra.run.dir={tmp_path / 'run'}", *words)],
        cwd=tmp_path, env=environment(SEEN=" ".join(seen)), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run(tmp_path / "simulated", *words, "executor=simulated")
    ours, theirs = summary(tmp_path / "run"), summary(tmp_path / "simulated")
    assert (ours["transport"], ours["transport_reason"]) == ("nccl", reason(2))
    assert ours["weights_sha256"] == theirs["weights_sha256"]


def test_more_processes_than_devices_communicate_through_host(tmp_path, monkeypatch):
    monkeypatch.delenv(WRAPPER, raising=False)
    run(tmp_path / "run", *TINY, "device=cuda", f"partition.stages={COUNT + 1}", "model=resnet20", "train.epochs=1")
    found = summary(tmp_path / "run")
    assert (found["transport"], found["transport_reason"]) == ("gloo", f"processes 0 and {COUNT} share a GPU")


# -- failures ----------------------------------------------------------------------------------------------------------


@needs_proc
@pytest.mark.parametrize("stage", [0, 1])
def test_killed_worker_ends_the_run_and_is_named(tmp_path, stage):
    """The other one's device waits for a message that never comes."""
    started = start(tmp_path, *TINY, "dataset.limit=3200", "train.epochs=2000", "device=cuda", "partition.stages=2")
    metrics = tmp_path / "run" / "metrics.jsonl"
    eventually(lambda: metrics.exists() and metrics.read_text().count("interval") > 20, seconds=180)
    pids = workers(started.pid)
    os.kill(pids[stage], signal.SIGKILL)
    killed = time.monotonic()
    _, error = started.communicate(timeout=60)
    assert time.monotonic() - killed < 30
    assert started.returncode == 1
    assert re.search(rf"stage {stage} failed: killed by SIGKILL; logs in ", error), error
    assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.parametrize(
    ("how", "error"), [("memory", "OutOfMemoryError: "), ("raise", "ValueError: this layer gave up")]
)
@pytest.mark.parametrize("boundary", [4, 5])
def test_error_in_forward_is_not_reported_as_lost_stage(tmp_path, boundary, how, error):
    stage = 1 if boundary == 4 else 0
    fails(
        tmp_path / "run", "model=custom", "model._target_=support.faults.failing_layer", f"+model.how={how}",
        "+model.nth=6", "partition=explicit", f"partition.boundaries=[{boundary}]", "device=cuda", "train.epochs=1",
        "dataset.limit=1280",
        message=rf"stage {stage} failed: {error}.*\(.*faults.py:\d+\); traceback in ",
    )  # fmt: skip
    assert summary(tmp_path / "run")["status"] == "failed"


# -- measurements ------------------------------------------------------------------------------------------------------


@needs(2)
def test_link_between_two_devices_is_measured():
    found = measured_link("cuda")
    assert 1e8 < found.bytes_per_s < 1e13
    assert found.message_work.seconds == 0


@needs(2)
@pytest.mark.parametrize(("method", "n"), [("gpipe", 1), ("gpipe", 4), ("pipedream_flush", 4), ("pipedream", 1)])
def test_idle_shares_are_near_those_of_the_schedule(tmp_path, method, n):
    """Stages take milliseconds: in the prediction messages, loading data and launching kernels take no time."""

    def made(name):
        chosen = job(
            tmp_path / name,
            method,
            2,
            model={"_target_": "support.gpu_layers.even"},
            dataset={"train": 64 * 40, "eval": 64},
            optimizer={"lr": 1e-3},
            train={"batch_size": 64, "microbatches": n, "epochs": 2},
        )
        return replace(chosen, plan=plan_of([(0, 1 + gpu_layers.BLOCKS // 2), (1 + gpu_layers.BLOCKS // 2, 10)]))

    (measured,), predicted = distributed([made("distributed")]), simulated(made("simulated"))
    shares = [[stage["idle_share"] for stage in each["per_stage"]] for each in (measured, predicted)]
    assert all(0 <= share <= 1 for each in shares for share in each)
    assert fmean(shares[0]) == pytest.approx(fmean(shares[1]), abs=0.15), shares


@needs(2)
def test_memory_of_a_stage_is_that_of_its_own_device(tmp_path):
    (found,) = distributed([job(tmp_path / "run", "pipedream", 2, train={"epochs": 1})])
    for stage in found["per_stage"]:
        assert 0 < stage["peak_memory_bytes"] <= stage["peak_reserved_memory_bytes"] <= stage["device_memory_bytes"]
