"""Whoever imports torchvision gets it, also beside a torch that its native library was not built for."""

import subprocess
import sys


def test_other_errors_of_torchvisions_import_are_left_alone(tmp_path):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('no such device')")
    done = python(
        "from pipetrain.engine.libraries import torchvision_import as t; t.install(); import torchvision", tmp_path
    )
    assert "RuntimeError: no such device" in done.stderr


def test_whether_torchvision_is_there_can_be_asked_without_torch(tmp_path):
    code = "import sys; from pipetrain.engine.libraries import torchvision_import as t; t.install(); import torchvision"
    done = python(f"{code}; print('torch' in sys.modules)", tmp_path, "torchvision.py")
    assert done.stdout == "False\n", done.stderr


def python(code, folder, *empty):
    for name in empty:
        (folder / name).touch()
    # the folder first, as the stand-in takes torchvision's place
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
