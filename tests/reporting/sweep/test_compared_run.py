"""What a run came to, read back from its directory."""

import pytest
from support.stored_runs import write_run

from pipetrain.reporting.sweep.run_reader import read
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.run_lock import locked


def test_run_numbers_are_summary_plus_all_stages(tmp_path):
    write_run(tmp_path / "a", "method=gpipe", top1=60.0)
    run = read(RunDirectory(tmp_path / "a"), {})
    assert run.values == {
        "top1": 60.0, "loss": 1.0, "best_top1": 65.0, "best_loss": 0.5, "steps": 10, "wall_s": 20.0,
        "samples_per_second": 300.0, "idle_share": 0.375, "weight_bytes": 1200, "activation_bytes": 40,
        "memory_bytes": 7000, "stage_bytes": 830, "copies": 1.5,
    }  # fmt: skip
    assert run.staleness == [2, 0]
    assert run.curves["top1"] == [(1, 59.0, 5, 10.0), (2, 60.0, 10, 20.0)]
    assert run.curves["samples_per_second"] == [(1, 100.0, 5, 10.0), (2, 200.0, 10, 20.0)]


def test_seed_of_a_method_that_is_the_seed_of_the_run_is_no_other(tmp_path):
    write_run(tmp_path / "a", "method=hogwild", "method.seed=1", "seed=1")
    write_run(tmp_path / "b", "method=hogwild", "method.seed=3", "seed=1")
    one, other = (read(RunDirectory(tmp_path / name), {}).seeds for name in "ab")
    assert one == (("seed", "1"),)
    assert other == (("method.seed", "3"), ("seed", "1"))


def test_setting_with_several_values_has_a_name_for_each_however_it_was_written(tmp_path):
    for name, target in (
        ("a", "train.target={top1: 80}"),
        ("b", "train.target={top1:80}"),
        ("c", "train.target.top1=80"),
    ):
        write_run(tmp_path / name, "method=gpipe", "train.target.top1=80")
        (tmp_path / name / ".hydra" / "overrides.yaml").write_text(f"- method=gpipe\n- '{target}'\n")
    runs = [read(RunDirectory(tmp_path / name), {}) for name in "abc"]
    assert [run.settings.get("train.target.top1") for run in runs] == [80, 80, 80]
    assert [[name for name in run.settings if name.startswith("train.target")] for run in runs] == [
        ["train.target.top1"]
    ] * 3
    assert len({tuple(run.asked) for run in runs}) == 1


def test_first_loss_is_that_of_the_first_interval_of_steps(tmp_path):
    write_run(tmp_path / "a")
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        for step, loss in ((1, 2.5), (2, 2.0)):
            file.write(f'{{"kind": "interval", "step": {step}, "epoch": 1, "wall_s": {step}.5, "loss": {loss}}}\n')
    run = read(RunDirectory(tmp_path / "a"), {})
    assert run.values["first_loss"] == 2.5
    assert run.curves["train_loss"] == [(1, 2.5, 1, 1.5), (1, 2.0, 2, 2.5)]


def test_training_loss_over_many_steps_is_a_binned_mean(tmp_path):
    write_run(tmp_path / "a")
    steps = range(1, 251)
    lines = [f'{{"kind": "interval", "step": {n}, "epoch": 1, "wall_s": 0.5, "loss": {n}.0}}\n' for n in steps]
    (tmp_path / "a" / "metrics.jsonl").write_text("".join(lines))
    curve = read(RunDirectory(tmp_path / "a"), {}).curves["train_loss"]
    assert [(point.step, point.value) for point in curve[:2]] == [(4, 2.5), (8, 6.5)]
    assert (curve[-1].step, curve[-1].value) == (250, 249.5)


@pytest.mark.parametrize(
    ("target", "seconds"),
    [
        ({"top1": 59.0}, 10.0),
        ({"top1": 60.0}, 20.0),
        ({"top1": 61.0}, None),
        ({"loss": 1.0, "top1": 60.0}, 20.0),
        ({"loss": 0.9}, None),
        ({"bleu": 1.0}, None),
        ({}, 7.0),
    ],
)
def test_target_time_is_of_first_evaluation_reaching_it(tmp_path, target, seconds):
    write_run(tmp_path / "a", top1=60.0, target={"wall_s": 7.0, "step": 4, "epoch": 1.0})
    assert read(RunDirectory(tmp_path / "a"), target).numbers.get("target_s") == seconds


def test_simulated_target_time_is_predicted_from_samples(tmp_path):
    speed = {"samples_per_second": None, "predicted_samples_per_second": 50.0}
    write_run(tmp_path / "a", top1=60.0, samples=200, executor="simulated", **speed)
    run = read(RunDirectory(tmp_path / "a"), {"top1": 60.0})
    found = run.numbers
    assert (found["target_epochs"], found["predicted_target_s"]) == (2, 4.0), "10 steps of 20 samples"
    assert [point.at("predicted_s", predicted=True) for point in run.curves["top1"]] == [2.0, 4.0]
    assert run.curves["top1"][0].at("wall_s", predicted=True) is None, "the simulator's own time is not the pipeline's"
    assert "target_epochs" not in read(RunDirectory(tmp_path / "a"), {"top1": 61.0}).numbers


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("summary.json", b'{"status": "comp'),
        ("summary.json", b"{}"),
        ("summary.json", b'{"status": "completed"}'),
        ("summary.json", b"\xff"),
        ("summary.json", b'{"status": "failed", "final": 3}'),
        ("config.yaml", b"a: [1"),
        ("metrics.jsonl", b'{"step": 1}\n'),
        ("summary.json", b"[" * 100_000),
        ("plan.json", b'{"stages": ['),
        ("plan.json", b'{"parameters": 1, "stages": [{}]}'),
        (
            "summary.json",
            b'{"status": "completed", "method": "a", "final": {"top1": "high"}, "best": {}, "per_stage": []}',
        ),
        ("summary.json", b'{"status": "failed", "per_stage": [{"forward_staleness": ["late"]}]}'),
        (".hydra/overrides.yaml", b"a: [1"),
        (".hydra/overrides.yaml", b"a: 1"),
    ],
)
def test_run_whose_files_cannot_be_read_is_damaged(tmp_path, name, text):
    write_run(tmp_path / "a")
    (tmp_path / "a" / name).write_bytes(text)
    run = read(RunDirectory(tmp_path / "a"), {"top1": 1.0})
    assert run.status == "damaged"
    assert run.reason


def test_run_without_a_summary_is_running_or_was_killed(tmp_path):
    write_run(tmp_path / "a")
    (tmp_path / "a" / "summary.json").unlink()
    assert read(RunDirectory(tmp_path / "a"), {}).status == "unfinished"
    with locked(tmp_path / "a"):
        assert read(RunDirectory(tmp_path / "a"), {}).status == "running"


def test_simulation_without_a_summary_has_no_wall_time(tmp_path):
    write_run(tmp_path / "a", "executor.name=simulated")
    (tmp_path / "a" / "summary.json").unlink()
    assert [point.seconds for point in read(RunDirectory(tmp_path / "a"), {}).curves["top1"]] == [None, None]


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({"executor": "distributed", "samples_per_second": 8.0}, 0.5),
        ({"executor": "simulated", "predicted_samples_per_second": 2.0, "samples_per_second": None}, 2.0),
        ({"executor": "simulated", "samples_per_second": 8.0}, None),
    ],
)
def test_seconds_of_a_step_are_measured_or_else_predicted(tmp_path, more, seconds):
    write_run(tmp_path / "a", samples=40, tokens=80, **more)
    amounts = {"samples": 4.0, "tokens": 8.0}
    assert read(RunDirectory(tmp_path / "a"), {}).per_step == (amounts | {"seconds": seconds} if seconds else amounts)
