"""What a worker's main thread says that it does."""

import pytest

from pipetrain.launch.activity import Activity


def test_activity_within_a_wait_is_told_as_what_waits_for_what():
    activity = Activity()
    activity.now("F3.0")
    with activity.wait("stage 1"):
        assert (activity.what, activity.waiting) == ("F3.0, waiting for stage 1", True)
        with activity.compute("F3.1"):
            assert (activity.what, activity.waiting) == ("F3.1", False)
        assert activity.waiting
    assert (activity.what, activity.waiting) == ("F3.0", False)


def test_wait_that_fails_is_over():
    activity = Activity()
    with pytest.raises(ValueError, match="lost"), activity.wait("stage 1"):
        raise ValueError("lost")
    assert (activity.what, activity.waiting) == ("starting", False)


def test_every_change_is_counted():
    activity = Activity()
    changes = [activity.changes]
    with activity.wait("stage 1"):
        changes.append(activity.changes)
        with activity.compute("F3.1"):
            changes.append(activity.changes)
        changes.append(activity.changes)
    changes.append(activity.changes)
    activity.now("F4.0")
    changes.append(activity.changes)
    assert changes == sorted(set(changes))


def test_finished_worker_neither_starts_nor_waits():
    activity = Activity()
    activity.begin()
    activity.finish()
    assert (activity.starting, activity.waiting, activity.finished) == (False, False, True)
