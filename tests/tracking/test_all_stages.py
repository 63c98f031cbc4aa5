"""What was measured of all stages together."""

from support.stored_runs import STAGES

from pipetrain.tracking.all_stages import of_all_stages


def test_shares_are_averaged_weights_and_activations_added_and_memory_is_the_largest():
    assert of_all_stages(STAGES) == {
        "idle_share": 0.375, "weight_bytes": 1200, "activation_bytes": 40, "memory_bytes": 7000, "stage_bytes": 830,
        "copies": 1.5,
    }  # fmt: skip


def test_what_no_stage_measured_is_left_out():
    assert of_all_stages([{"layers": 2, "parameters": 3}, {"idle_share": None}]) == {}
