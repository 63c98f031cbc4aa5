"""What a sweeper that searches is told of a run, and when it is refused."""

import json
import math

import pytest
from omegaconf import OmegaConf
from support.cli import TINY, pipetrain_here, refused

from pipetrain.commands.run import sweep
from pipetrain.commands.run.objective import objective_of, searches
from pipetrain.engine.errors import ExitCode


def told(config, folder, code):
    """The value that the sweeper is told; the configuration of a run does not have Hydra's own."""
    own = OmegaConf.create({name: value for name, value in config.items() if name != "hydra"})
    return objective_of(own, config.hydra.sweeper, folder, code)


def configured(objective=None, *, best=False, metric="loss", **sweeper):
    return OmegaConf.create(
        {
            "sweep": {"objective": objective, "best": best},
            "checkpoint": {"metric": metric},
            "hydra": {"sweeper": {"_target_": "x.Sweeper", **sweeper}},
        }
    )


@pytest.mark.parametrize(
    ("config", "value"),
    [
        (configured(), 0.5),
        (configured(metric="top1"), 80.0),
        (configured("top1", best=True), 90.0),
        (configured("perplexity"), math.inf),  # not a number
        (configured("top5"), -math.inf),  # not evaluated
    ],
)
def test_value_is_that_of_the_last_or_best_evaluation(tmp_path, config, value):
    final = {"loss": 0.5, "top1": 80, "perplexity": "nan"}
    content = {"status": "completed", "final": final, "best": {"loss": 0.4, "top1": 90}, "lower_is_better": ["loss"]}
    (tmp_path / "summary.json").write_text(json.dumps(content))
    assert told(config, tmp_path, ExitCode.COMPLETED) == value
    for code in (ExitCode.DIVERGED, ExitCode.FAILED, ExitCode.WRONG_USAGE):
        assert abs(told(config, tmp_path, code)) == math.inf


def test_value_of_a_run_that_did_not_complete_is_the_worst(tmp_path):
    assert told(configured("loss"), tmp_path, ExitCode.DIVERGED) == math.inf
    assert told(configured("top1"), tmp_path, ExitCode.WRONG_USAGE) == -math.inf
    assert told(configured("wer", direction="minimize"), tmp_path, ExitCode.DIVERGED) == math.inf


def test_hydras_own_sweeper_does_not_search():
    own = configured(_target_="hydra._internal.core_plugins.basic_sweeper.BasicSweeper")
    assert [searches(own), searches(configured())] == [False, True]


def test_search_without_evaluations_is_refused(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    words = ("run", "-m", "hydra/sweeper=optuna", "eval.every_epochs=0", "optimizer.lr=choice(1,2)")
    refused(*words, cwd=tmp_path, message="eval.every_epochs=0: no run would be evaluated")


@pytest.mark.parametrize(
    ("objective", "codes", "code"),
    [
        ("loss", (0, 3), 0),
        (None, (0, 3), 3),
        ("loss", (3, 3), 3),
        ("loss", (3, 2, 0), 2),
        ("loss", (0, 1, 3), 1),
        ("loss", (3, 1), 1),
        (None, (3, 2), 2),
    ],
)
def test_run_that_diverges_is_a_result_of_a_search(tmp_path, objective, codes, code):
    (tmp_path / ".ends").mkdir()
    for number, each in enumerate(codes):
        end = {"path": "x", "code": each, "settings": {}, "asked": []}
        (tmp_path / ".ends" / f"{number}.json").write_text(json.dumps(end))
    assert sweep.exit_code(sweep.Sweep(tmp_path, objective)) == code


@pytest.mark.slow
def test_optuna_finds_the_rate_that_does_not_diverge(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    optuna = ("hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", "hydra.sweeper.direction=maximize")
    words = (*TINY, "executor=simulated", "threads=1", "sweep.objective=top1", "hydra.sweep.dir=sweep")
    done = pipetrain_here("run", "--multirun", *optuna, *words, "optimizer.lr=choice(1e30,0.01)", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("lr=")]
    assert [row.split()[0] for row in rows[:2]] == ["lr=0.01", "lr=1e+30"]
    found = OmegaConf.load(tmp_path / "sweep" / "optimization_results.yaml")
    (best,) = (tmp_path / "sweep").glob("*_lr=0.01")
    assert found.best_params == {"optimizer.lr": 0.01}
    assert found.best_value == json.loads((best / "summary.json").read_text())["final"]["top1"]


@pytest.mark.slow
def test_optuna_reversed_range_is_refused(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    done = pipetrain_here("run", "-m", "hydra/sweeper=optuna", "optimizer.lr=interval(1,0.1)", cwd=tmp_path)
    assert done.returncode == 2
    assert "pipetrain: error: hydra/sweeper: " in done.stderr
    assert "Traceback" not in done.stderr
