"""Records of the distances between weights: the same in both executors, with replicas, and in a resumed run."""

import shutil

import pytest
from support.worker_pool import distributed, job, simulated

from pipetrain.engine.program.trace import QUANTITIES
from pipetrain.runner.tracking.records import STALENESS, read_records
from pipetrain.runner.tracking.run_directory import RunDirectory

MEASURED = {"log": {"staleness_every_steps": 2}}
TORCH = {"_target_": "pipetrain.plugins.torch_schedules.schedules.Interleaved1F1B", "chunks": 2}


def records(run):
    """What was measured, without the times at which it was written."""
    found = [record for record in read_records(RunDirectory(run)) if record["kind"] == STALENESS]
    return [{name: value for name, value in record.items() if name != "wall_s"} for record in found]


@pytest.mark.slow
def test_both_executors_record_the_same_distances(tmp_path):
    cases = {
        "pipeoptim": ("pipeoptim", 2, {"train": {"microbatches": 2}}),
        "pipemare": ("pipemare", 2, {}),
        "pipedream": ("pipedream", 2, {"checkpoint": {"every_steps": 4}}),
        "gpipe": ("gpipe", 2, {"train": {"microbatches": 2}, "optimizer": {"clip_norm": 0.1}}),
        "replicas": ("pipeoptim", 2, {"partition": {"replicas": [2, 1]}}),
    }
    jobs = {
        name: [job(tmp_path / f"{name}-{where}", *case[:2], **case[2], **MEASURED) for where in ("here", "there")]
        for name, case in cases.items()
    }
    ours = {name: simulated(here) for name, (here, _) in jobs.items()}
    for summary, (name, (here, there)) in zip(
        distributed([there for _, there in jobs.values()]), jobs.items(), strict=True
    ):
        assert summary["weights_sha256"] == ours[name]["weights_sha256"]
        assert records(there.run.path) == records(here.run.path), name
        assert [record["step"] for record in records(here.run.path)] == [2, 4, 6, 8, 10, 12]
    names = set(QUANTITIES) - {"gradient_cosine"}
    (first, *_) = records(tmp_path / "replicas-here")
    assert first.keys() == {"kind", "step", "epoch"} | {f"stage{r}_{name}" for r in (0, 1) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["pipedream", "pipemare"])
def test_resumed_run_records_what_the_whole_one_does(tmp_path, case):
    changes = {"checkpoint": {"every_steps": 4}, "log": {"staleness_every_steps": 1, "staleness_gradient": True}}
    simulated(job(tmp_path / "whole", case, 2, **changes))
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    run = tmp_path / "resumed"
    simulated(job(run, case, 2, resume=run / "checkpoints" / "step-00000004", **changes))
    assert [record["step"] for record in records(run)] == list(range(1, 13))
    assert records(run) == records(tmp_path / "whole")


def test_diverged_simulation_records_the_steps_before(tmp_path):
    optimizer = {"lr": 1e30, "_target_": "torch.optim.SGD", "momentum": 0.9}
    found = simulated(job(tmp_path, "pipedream", 2, optimizer=optimizer, log={"staleness_every_steps": 1}))
    assert found["status"] == "diverged"
    assert [record["step"] for record in records(tmp_path)][:1] == [1]
