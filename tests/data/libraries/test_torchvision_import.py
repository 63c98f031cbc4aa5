"""Whoever imports torchvision gets it, also beside a torch that its native library was not built for."""

from support.processes import python

INSTALLED = "from pipetrain.data.libraries import torchvision_import as t; t.install(); import torchvision"


def test_other_errors_of_torchvisions_import_are_left_alone(tmp_path):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('no such device')")
    done = python(INSTALLED, cwd=tmp_path)
    assert "RuntimeError: no such device" in done.stderr


def test_whether_torchvision_is_there_can_be_asked_without_torch(tmp_path):
    (tmp_path / "torchvision.py").touch()
    done = python(f"{INSTALLED}; import sys; print('torch' in sys.modules)", cwd=tmp_path)
    assert done.stdout == "False\n", done.stderr
