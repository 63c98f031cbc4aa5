"""The numbers of a run that trackers show."""

from pipetrain.runner.tracking.trackers.points import points_of, results


def test_records_without_numbers_have_no_points():
    for record in ({"kind": "start"}, {"kind": "drain", "cause": "signal"}, {"kind": "warning", "message": "no"}):
        assert points_of({"step": 3, "epoch": 1, "wall_s": 1.0, **record}) == {}


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
