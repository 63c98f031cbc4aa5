import os
import time
from pathlib import Path

import pytest

from pipetrain.engine.errors import RunError
from pipetrain.planning.profiling import link_speed
from pipetrain.planning.profiling.link_speed import measured_link


def never_answer(rank, _folder, note):
    Path(note, str(rank)).write_text(str(os.getpid()))
    time.sleep(3600)


@pytest.mark.slow
def test_workers_send_megabytes_and_large_messages_cost_cores():
    found = measured_link("cpu")
    assert 1e6 < found.bytes_per_s < 1e12
    assert 0 < found.message_work.seconds < 1
    assert 0 < found.message_work.seconds_per_byte < 1e-6


def test_unanswering_workers_are_ended_with_settings_named(tmp_path, monkeypatch):
    monkeypatch.setattr(link_speed, "_worker", never_answer)
    monkeypatch.setattr(link_speed, "_DEADLINE_SECONDS", 1.0)
    with pytest.raises(RunError, match=r"within 1 s.* planner\.bandwidth=false .*topology\.gigabytes_per_s"):
        measured_link(str(tmp_path))
    for started in tmp_path.iterdir():  # of a worker that came so far
        with pytest.raises(ProcessLookupError):
            os.kill(int(started.read_text()), 0)


def test_slowed_links_have_time_of_their_messages(monkeypatch):
    monkeypatch.setattr(link_speed, "given_bytes_per_s", lambda: None)
    alone = link_speed._allowed_s()
    monkeypatch.setattr(link_speed, "given_bytes_per_s", lambda: 1e6)
    assert link_speed._allowed_s() > alone + 2 * 20 * 4
