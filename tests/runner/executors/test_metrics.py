"""The metrics of evaluations in runs: those of all samples at once, and the same bits wherever the stages are."""

import json

import pytest
import torch
from support import small_model
from support.equal_bits import replicated
from support.methods import MethodCase
from support.one_run import carried_out
from support.worker_pool import distributed, job, run_jobs, simulated

from pipetrain.engine.executors.distributed import DistributedExecutor
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.store import Selection
from pipetrain.runner.training.components.data import build_data
from pipetrain.runner.training.finished.evaluate import evaluate

METRICS = {
    "f1": {"_target_": "torchmetrics.classification.MulticlassF1Score", "num_classes": 4},
    "auc": {"_target_": "torchmetrics.classification.MulticlassAUROC", "num_classes": 4},
    "held": {"_target_": "support.own_metrics.Holder", "classes": 4},
    "ordered": {"_target_": "support.own_metrics.Ordered", "power": 1.5},
}

OWN = {method: MethodCase.named(method).sections()["schedule"] for method in ("gpipe", "pipedream")}


def made(folder, method="pipedream", stages=2, **changes):
    """Ten samples are evaluated three at a time; the best step by a metric that falls."""
    changes = {"metrics": METRICS, "eval": {"batch_size": 3}, "checkpoint": {"metric": "ordered"}, **changes}
    return job(folder, method, stages, **changes)


def scores_and_labels(run):
    samples = build_data(run.settings).dataset.eval
    x, y = (torch.stack(each) for each in zip(*[samples[i] for i in range(len(samples))], strict=True))
    chain = small_model.build(channels=1, classes=4)
    chain.module.load_state_dict(contents.model_state(store.newest_undamaged(str(run.run))))
    for layer in chain.layers:
        layer.eval()
    with torch.no_grad():
        return chain(x), y


@pytest.mark.slow  # torchmetrics takes seconds to import
def test_f1_and_auc_are_those_of_all_samples_by_hand(tmp_path):
    run = made(tmp_path / "run")
    final = simulated(run)["final"]
    scores, labels = scores_and_labels(run)
    predicted, f1, auc = scores.argmax(1), [], []
    for c in range(4):
        hits, others = ((predicted == c) & (labels == c)).sum(), ((predicted == c) ^ (labels == c)).sum()
        own, rest = scores.softmax(1)[labels == c, c], scores.softmax(1)[labels != c, c]
        if len(own) or (predicted == c).any():
            f1.append(float(2 * hits / (2 * hits + others)))
        if len(own):
            pairs = own[:, None] - rest[None]
            auc.append(float(((pairs > 0) + 0.5 * (pairs == 0)).mean()))
    assert 0 < final["f1"] < 1
    assert final["f1"] == pytest.approx(sum(f1) / len(f1))
    assert final["auc"] == pytest.approx(sum(auc) / len(auc))


def test_stateful_metrics_do_not_change_the_run(tmp_path):
    own = {"ordered": METRICS["ordered"]}
    with_metrics = simulated(made(tmp_path / "with", metrics=own))
    without = simulated(made(tmp_path / "without", metrics={}, checkpoint={}))
    assert with_metrics["weights_sha256"] == without["weights_sha256"]
    assert with_metrics["loss_sha256"] == without["loss_sha256"]
    assert {name: with_metrics["final"][name] for name in without["final"]} == without["final"]
    assert with_metrics["lower_is_better"] == ["loss", "ordered"]


@pytest.mark.slow
def test_metrics_have_equal_bits_in_every_executor(tmp_path):
    torchs = {"_target_": "pipetrain.plugins.torch_schedules.schedules.ZBVZeroBubble"}
    cases = [
        ("pipedream", 2, {}),
        replicated((2, 3), "gpipe", 1),
        ("gpipe", 4, {"schedule": torchs, "train": {"microbatches": 2}}),
    ]
    jobs = [made(tmp_path / f"{i}", method, stages, **changes) for i, (method, stages, changes) in enumerate(cases)]
    for i, found in enumerate(distributed(jobs)):
        method, stages, changes = cases[i]
        alone = simulated(made(tmp_path / f"alone{i}", method, stages, **{**changes, "schedule": OWN[method]}))
        exact = i < 2  # the library sums gradients in another order
        assert found["final"] == (alone["final"] if exact else pytest.approx(alone["final"], rel=1e-4)), cases[i]
        assert found["final"].keys() >= METRICS.keys()


def noting_the_gate(rank, jobs, ports):
    """Notes what the gate has counted before replicas wait for each other, and after the evaluation."""
    evaluate, update, begun = DistributedExecutor.evaluate, DistributedExecutor._update, []

    def noted(executor, *arguments):
        begun.append(executor.hooks.gate.begun)
        return update(executor, *arguments)

    def noted_at_the_end(executor, *arguments):
        found = evaluate(executor, *arguments)
        begun.append(executor.hooks.gate.begun)
        (jobs[0].run.path / f"begun{rank}.json").write_text(json.dumps(begun))
        return found

    DistributedExecutor._update, DistributedExecutor.evaluate = noted, noted_at_the_end
    run_jobs(rank, jobs, ports)


def test_replicas_pass_evaluation_gate_before_waiting(tmp_path):
    method, stages, changes = replicated((1, 2), "gpipe", 1)
    run = made(tmp_path, method, stages, metrics={"ordered": METRICS["ordered"]}, **changes)
    distributed([run], noting_the_gate)
    (end,), first, second = (json.loads((tmp_path / f"begun{rank}.json").read_text()) for rank in range(3))
    assert first == second == [end - 2, end, end]  # four parts


def test_run_records_a_further_metric_and_evaluates_it_again(tmp_path):
    target = "support.own_metrics.Ordered"
    assert carried_out(tmp_path / "run", f"metrics.error._target_={target}", "checkpoint.metric=error") == 0
    run = RunDirectory(tmp_path / "run")
    summary = json.loads(run.summary.read_text())
    recorded = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    errors = [record["eval_error"] for record in recorded if record["kind"] == "eval"]
    assert (summary["final"]["error"], summary["best"]["error"]) == (errors[-1], min(errors))
    assert summary["lower_is_better"] == ["error", "loss"]
    found = evaluate(Selection(run.path), trust=True)
    assert found.others == {"error": errors[-1]}
    assert found.metrics["loss"] == summary["final"]["loss"]
