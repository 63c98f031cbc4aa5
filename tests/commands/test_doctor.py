import torch
from support.cli import pipetrain


def test_doctor_lists_versions_and_devices(tmp_path):
    done = pipetrain("doctor", cwd=tmp_path)
    assert done.returncode == 0
    assert torch.__version__ in done.stdout
    assert "gloo" in done.stdout
