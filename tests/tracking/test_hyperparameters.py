"""What TensorBoard's page of hyperparameters shows of a run."""

from pipetrain.tracking.hyperparameters import results, values_set

CONFIG = {
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1, "betas": [0.9, 0.99]},
    "train": {"epochs": 3, "max_steps": None, "recompute": False},
    "phases": [{"method": {"_target_": "m", "t1": True}, "steps": 5}],
}


def test_every_set_value_has_its_command_line_name():
    assert values_set(CONFIG, {"method": "gpipe", "experiment": "None"}) == {
        "method": "gpipe",
        "optimizer.lr": 0.1,
        "optimizer.betas": "[0.9, 0.99]",
        "train.epochs": 3,
        "train.recompute": False,
        "phases.0.method.t1": True,
        "phases.0.steps": 5,
    }


def test_results_are_metrics_times_throughput_and_total_memory():
    def stage(idle, count):
        return {
            "idle_share": idle, "weight_bytes_peak": count, "activation_bytes_peak": None, "peak_memory_bytes": count
        }  # fmt: skip

    found = results(
        {
            "steps": 4, "wall_s": 2.0, "train_s": 1.0, "eval_s": 0.5, "samples_per_second": 8.0,
            "predicted_samples_per_second": None, "target": {"wall_s": 1.5}, "final": {"top1": 1.0}, "best": {},
            "per_stage": [stage(0.0, 1_000_000), stage(0.5, 3_000_000)],
        }
    )  # fmt: skip
    assert found == {
        "final/top1": 1.0, "run/steps": 4, "run/wall_s": 2.0, "run/train_s": 1.0, "run/eval_s": 0.5,
        "run/samples_per_second": 8.0, "run/target_s": 1.5, "run/idle_share": 0.25, "run/weights_MB": 4.0,
        "run/memory_MB": 3.0,
    }  # fmt: skip
