"""Tables and curves of measured distances."""

import json

import pytest
from support.refusals import assert_refused
from support.stored_runs import write_run

from pipetrain import cli
from pipetrain.engine.errors import ExitCode
from pipetrain.reporting import distances
from pipetrain.reporting.sweep.comparison import collect


def write_measured(folder, drift, *overrides):
    """A run with two stages, measured in steps 2, 4 and 6: the first drifts, the last has no distance."""
    write_run(folder, *overrides)
    with (folder / "metrics.jsonl").open("a") as file:
        for step, factor in ((2, 8.0), (4, 1.0), (6, 3.0)):
            first = {
                "weight_drift": drift * factor,
                "forward_error": 0.5 * drift * factor,
                "relative_weight_drift": None,
            }
            last = {"weight_drift": 0.0, "forward_error": 0.0, "relative_weight_drift": 0.0}
            stages = {f"stage{r}_{name}": value for r, row in enumerate((first, last)) for name, value in row.items()}
            fields = {"stage0_gradient_norm": factor, "stage1_gradient_norm": 1.0}
            file.write(json.dumps({"kind": "staleness", "step": step, "epoch": 1, **stages, **fields}) + "\n")


def test_means_are_over_seeds_and_the_last_half_of_steps(tmp_path):
    write_measured(tmp_path / "0", 1.0, "method=pipeoptim", "seed=0")
    write_measured(tmp_path / "1", 2.0, "method=pipeoptim", "seed=1")
    (found,) = distances.measured(collect([tmp_path], {}).groups)
    assert found.runs == 2
    assert found.curves["weight_drift"][0] == {2: 12.0, 4: 1.5, 6: 4.5}
    assert found.mean("weight_drift", 0) == 3.0
    assert found.ratio("forward_error", 0) == 0.5
    assert found.ratio("forward_error", 1) is None
    assert found.mean("relative_weight_drift", 0) is None
    assert found.mean("relative_weight_drift", 1) == 0.0


def test_command_prints_a_table_for_each_method_and_draws(tmp_path, capsys):
    write_measured(tmp_path / "0", 1.0, "method=pipeoptim")
    write_measured(tmp_path / "1", 1.0, "method=naive_async")
    write_run(tmp_path / "2", "method=gpipe")
    figure = tmp_path / "new" / "d.png"
    (tmp_path / "new").mkdir()
    assert cli.carry_out(["report", "distances", str(tmp_path), "-o", str(figure)]) is ExitCode.COMPLETED
    out = capsys.readouterr().out
    assert [line.partition(":")[0] for line in out.splitlines() if "steps from 4 to 6" in line] == [
        "naive_async",
        "pipeoptim",
    ]
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("    0")] == ["-", "-"]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_run_without_any_drift_still_has_a_table_and_a_figure(tmp_path, capsys):
    write_run(tmp_path / "run", "method=pipeoptim")
    record = {"kind": "staleness", "step": 2, "epoch": 1, "stage0_weight_drift": None, "stage0_gradient_norm": 0.5}
    damaged = {"stage0_update_norm": {}, "stage0_gradient_cosine": "x", "stage1_gradient_norm": 10**400}
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record | damaged) + "\n")
    assert cli.carry_out(["report", "distances", str(tmp_path), "-o", str(tmp_path / "d.svg")]) is ExitCode.COMPLETED
    out = capsys.readouterr().out
    assert "pipeoptim: means of 1 step from 2 to 2" in out
    assert [line.split() for line in out.splitlines() if line.startswith("    0")] == [["0", "0.5", "-", "-"]]
    assert "stage 0" in (tmp_path / "d.svg").read_text()


@pytest.mark.parametrize("words", [["-o", "figure.txt"], ["-o", "missing/figure.png"], []])
def test_distances_that_cannot_be_shown_are_refused(tmp_path, capsys, words):
    write_run(tmp_path / "run", "method=gpipe")
    assert cli.carry_out(["report", "distances", str(tmp_path), *words]) is ExitCode.WRONG_USAGE
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_runs_without_measurements_name_the_setting(tmp_path):
    write_run(tmp_path / "run", "method=gpipe")
    assert_refused(r"log\.staleness_every_steps", distances.measured, collect([tmp_path], {}).groups)
