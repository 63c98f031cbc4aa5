"""Sweeps whose runs other launchers than Hydra's own start, in processes of their own."""

import pytest
from support.cli import pipetrain, summary

pytestmark = pytest.mark.slow

SHORT = ("model=lenet5", "dataset.limit=64", "train.batch_size=32", "train.epochs=1", "threads=1", "executor=simulated")


@pytest.mark.parametrize(
    ("plugin", "launcher"),
    [
        ("hydra_joblib_launcher", ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")),
        ("hydra_submitit_launcher", ("hydra/launcher=submitit_local",)),
    ],
    ids=["joblib", "submitit"],
)
def test_diverged_run_does_not_stop_the_sweep(tmp_path, plugin, launcher):
    pytest.importorskip(f"hydra_plugins.{plugin}")

    def sweep(*words):
        words = ("run", "--multirun", *launcher, *SHORT, "hydra.sweep.dir=sweep", *words)
        return pipetrain(*words, cwd=tmp_path, timeout=250)

    first = sweep("optimizer.lr=1e30,0.01")
    assert first.returncode == 3, first.stderr
    runs = [tmp_path / "sweep" / name for name in ("0_lr=1e+30", "1_lr=0.01")]
    assert [summary(each)["status"] for each in runs] == ["diverged", "completed"]
    assert "lr=1e+30" in first.stdout.partition("samples/s")[2]  # the table at the end has both
    before = (runs[1] / "summary.json").stat().st_mtime_ns
    # with another rate in place of the first one, the folder of the run that has completed is the same
    again = sweep("optimizer.lr=-1,0.01", "resume=auto")
    assert again.returncode == 2, again.stderr
    assert (runs[1] / "summary.json").stat().st_mtime_ns == before
