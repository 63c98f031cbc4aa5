"""What `pipetrain doctor --gpu` reports where there is no GPU, of steps that fail or hang, and on emulated GPUs."""

import collections
import json
import time

import pytest
from support.cli import pipetrain as command

from pipetrain import cli
from pipetrain.commands import gpu_check
from pipetrain.commands.gpu_check import runs, steps
from pipetrain.commands.gpu_check.runs import CheckError, Machine, attempt, compare_with_simulation, differences, sweep
from pipetrain.commands.gpu_check.steps import STEPS, Step
from pipetrain.config.choices import names_of
from pipetrain.config.composition import composed

COMPLETED = {"status": "completed", "loss_sha256": "a", "weights_sha256": "b", "final": {"loss": 1.0}}


def report(capsys, *words, code=0):
    assert cli.carry_out(["doctor", "--gpu", "--json", *words]) == code
    return {each["title"]: each for each in json.loads(capsys.readouterr().out)}


def use(monkeypatch, gpus, *checks):
    """Replaces the steps, and the number of GPUs that the environment has."""
    monkeypatch.setattr(Machine, "call", lambda *_, **__: [{"gpus": gpus, "lines": []}])
    monkeypatch.setattr(gpu_check, "STEPS", [Step("mine", each) for each in checks])


def module(folder, name, code):
    (folder / f"{name}.py").write_text(code)
    return [name]


def test_machine_without_gpu_verifies_nothing_and_so_fails(capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cli.carry_out(["doctor", "--gpu"]) == 1
    text = capsys.readouterr().out
    assert text.count("not tested: torch finds no CUDA device") == 1 + len(STEPS)
    assert text.endswith("nothing was verified\n")


def test_step_that_fails_is_reported_and_the_next_part_goes_on(monkeypatch, capsys):
    def second():
        yield str(1 / 0)

    def checks(_machine):
        yield from attempt("first", ["FAILED: two and two"])
        yield from attempt("second", second())
        yield from attempt("third", ["ok: done"])

    use(monkeypatch, 1, checks)
    found = report(capsys, code=1)["mine"]
    assert found["state"] == "failed"
    assert found["lines"][0] == "FAILED: two and two"
    assert "second, after 0.0 s: ZeroDivisionError" in found["lines"][1]
    assert found["lines"][2] == "ok: done"


def test_hanging_child_tree_is_killed_and_its_output_shown(tmp_path):
    code = "import os, time; print('begun', flush=True); print(os.fork(), flush=True); time.sleep(60)"
    began = time.monotonic()
    with pytest.raises(CheckError, match=r"did not end within 1.5 s and was killed(?s:.*)begun"):
        Machine(tmp_path).execute(tmp_path, module(tmp_path, "hanging", code), seconds=1.5)
    assert time.monotonic() - began < 10


def test_child_that_fails_ends_those_beside_it(tmp_path):
    other = module(tmp_path, "other", "import time; time.sleep(60)")
    broken = module(tmp_path, "broken", "raise ValueError('broken')")
    began = time.monotonic()
    with pytest.raises(CheckError, match=r"(?s)exit code 1: .*ValueError: broken"):
        Machine(tmp_path).execute(tmp_path, other, broken, seconds=30)
    assert time.monotonic() - began < 20


def test_runs_with_other_bits_or_another_end_differ():
    assert not differences("same", COMPLETED, COMPLETED, bits=True)
    assert differences("bits", COMPLETED, COMPLETED | {"weights_sha256": "c"}, bits=True) == [
        "FAILED: bits: weights_sha256 differ; final losses 1.0 and 1.0"
    ]
    assert differences("loss", COMPLETED, COMPLETED | {"final": {"loss": 1.1}}, bits=False)
    failed = {"status": "failed", "reason": "stage 1 failed", "folder": "/nowhere"}
    assert "stage 1 failed" in differences("end", COMPLETED, failed, bits=True)[0]


def test_nondeterministic_operation_is_compared_by_loss(monkeypatch, tmp_path):
    refused = {"status": "failed", "reason": "deterministic=true: max_pool has none", "folder": str(tmp_path)}

    def swept(_machine, settings, _varied, **_options):
        each = refused if "deterministic=true" in settings else COMPLETED | {"weights_sha256": str(len(settings))}
        return {(executor, "gpipe"): each for executor in ("simulated", "distributed")}

    monkeypatch.setattr("pipetrain.commands.gpu_check.runs.sweep", swept)
    lines = [*compare_with_simulation(Machine(tmp_path), [], {"method": ["gpipe"]}, seconds=1)]
    assert "max_pool has none" in lines[0]
    assert lines[1].startswith("ok: losses of the simulation")


def test_no_step_begins_once_the_time_is_over(monkeypatch, tmp_path):
    begun = []
    use(monkeypatch, 2, *[lambda _machine: begun.append(1)] * 2)
    monkeypatch.setattr(gpu_check, "_SECONDS", 0.0)
    results = [*gpu_check.examine(Machine(tmp_path))]
    assert [(each.state, each.why) for each in results[1:]] == [("not tested", "0 s have passed")] * 2
    assert not begun


def test_emulation_takes_a_checkout_and_goes_with_gpu(monkeypatch, capsys, tmp_path):
    assert cli.carry_out(["doctor", "--emulated"]) == 2
    monkeypatch.setattr("pipetrain.__file__", str(tmp_path / "pipetrain" / "__init__.py"))
    assert cli.carry_out(["doctor", "--gpu", "--emulated"]) == 2
    assert "a checkout" in capsys.readouterr().err


@pytest.mark.slow
def test_runs_of_a_sweep_are_found_by_what_they_differ_in(tmp_path, monkeypatch):
    monkeypatch.setattr(Machine, "device", "cpu")
    machine = Machine(tmp_path)
    tiny = ["model=lenet5", "dataset.limit=64", "train.epochs=1", "executor=simulated"]
    found = sweep(machine, tiny, {"method": ["pipedream"], "optimizer": ["sgd", "adam"]}, seconds=60)
    assert [found["pipedream", each]["choices"]["optimizer"] for each in ("sgd", "adam")] == ["sgd", "adam"]
    with pytest.raises(CheckError, match="no such optimizer"):
        sweep(machine, tiny, {"optimizer": ["none"]}, seconds=60)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_settings_of_the_steps_are_what_runs_take(tmp_path, monkeypatch):
    """On the CPU, which has the results of the CPU; the waits of the host are CUDA's."""
    monkeypatch.setattr(Machine, "device", "cpu")
    monkeypatch.setattr(steps, "_waits", lambda _machine: [])
    monkeypatch.setattr(steps, "_BUSY", [*steps._TINY, "train.microbatches=4"])
    for few, names in {"_METHODS": "gpipe pipedream", "_FAMILIES": "pipeoptim", "_OPTIMIZERS": "sgd lars"}.items():
        monkeypatch.setattr(steps, few, names.split())
    machine = Machine(tmp_path, gpus=2)
    checks = (steps._one_gpu, steps._shared, steps._schedules, steps._speed)
    lines = [line for each in checks for line in each(machine)]
    assert not [line for line in lines if line.startswith("FAILED")], "\n".join(lines)


@pytest.mark.slow
def test_steps_name_settings_and_choices_that_there_are(tmp_path, monkeypatch):
    """Composes one run of each sweep; the combinations of its values are left to the GPUs."""
    settings_of_runs, chosen = set(), set()

    def swept(_machine, settings, varied, **_options):
        settings_of_runs.add((*settings, *(f"{name}={values[-1]}" for name, values in varied.items())))
        chosen.update((group, name) for group, names in varied.items() for name in names)
        return collections.defaultdict(lambda: COMPLETED | {"folder": str(tmp_path)})

    def called(_machine, _function, *calls, **_options):
        settings_of_runs.update(tuple(call[1]) for call in calls if isinstance(call[1], list))
        return [{}]

    for each in (steps, runs):
        monkeypatch.setattr(each, "sweep", swept)
    monkeypatch.setattr(Machine, "call", called)
    for step in STEPS:
        collections.deque(step.checks(Machine(tmp_path, gpus=4)), maxlen=0)  # what they say of no results aside
    for words in settings_of_runs:
        composed(words).check_targets()
    assert {("method", "pipemare"), ("schedule", "torch_interleaved_1f1b"), ("optimizer", "lars")} <= chosen
    for group, name in chosen:
        assert "." in group or group == "device" or name in names_of(group), f"{group}={name}"


@pytest.mark.slow
def test_step_runs_on_emulated_gpus(capsys, monkeypatch):
    def checks(machine):
        settings = [*steps._tiny(machine), "train.max_steps=2", "partition.stages=2"]
        yield from compare_with_simulation(machine, settings, {"method": ["pipedream"]}, seconds=180)

    monkeypatch.setattr(gpu_check, "STEPS", [Step("mine", checks, gpus=2, emulated=True)])
    found = report(capsys, "--emulated")["mine"]
    assert found["state"] == "ok"
    assert "nccl" in "".join(found["lines"])


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_emulated_gpus_pass_what_they_carry(tmp_path):
    done = command("doctor", "--gpu", "--emulated", "--json", cwd=tmp_path, timeout=850)
    found = {each["number"]: each for each in json.loads(done.stdout)}
    states = {number: each["state"] for number, each in found.items()}
    carried = dict.fromkeys((1, 3, 4, 5, 6, 7), "ok")
    assert states == carried | {2: "not tested", 8: "not tested"}, done.stdout
    assert "nccl" in "".join(found[5]["lines"])
