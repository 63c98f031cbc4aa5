"""PipeDream: its setting."""

from pipetrain.engine.methods.pipedream import PipeDream


def test_vertical_sync_is_off_by_default():
    assert not PipeDream().vertical_sync
