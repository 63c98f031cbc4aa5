"""Reports of replicas taken together."""

from pipetrain.run.stage_reports import of_stages
from pipetrain.schedules import Replicas


def test_report_of_a_stage_is_that_of_its_worker_or_of_its_replicas_together():
    one = {"idle_share": 0.2, "forward_staleness": [1, 2], "weight_bytes_peak": 8, "unknown": None}
    two = {"idle_share": 0.4, "forward_staleness": [0, 1], "weight_bytes_peak": 9, "unknown": None}
    first, second = of_stages([one, two, one], Replicas((2, 1)))
    assert first["idle_share"] == 0.30000000000000004
    assert (first["forward_staleness"], first["weight_bytes_peak"], first["unknown"]) == ([0, 1, 2], 9, None)
    assert first["replicas"] == [one, two]
    assert second == one
