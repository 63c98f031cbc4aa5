"""Targets get torchvision, also beside a torch that its native library was not built for."""

import pytest
from support.processes import python

STAND_IN = """
import torch
@torch.library.register_fake("torchvision::nms")
def _nms(boxes, scores, threshold):
    return boxes
built = True
"""


USER = """
from pipetrain.runner.config.instantiate import Target
print(Target("model", "own.build", {}).build())
"""


OWN = """
import torchvision
def build():
    from torchvision import built  # late, as in a function
    return built
"""


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, True], ids=["without its operators", "with its operators"])
def test_target_of_the_users_own_imports_torchvision(tmp_path, native):
    (tmp_path / "torchvision").mkdir()
    defines = "import torch\nL = torch.library.Library('torchvision', 'DEF')\nL.define('nms(Tensor a) -> Tensor')\n"
    (tmp_path / "torchvision" / "__init__.py").write_text((defines if native else "") + STAND_IN)
    (tmp_path / "own.py").write_text(OWN)
    done = python(USER, cwd=tmp_path)
    assert done.stdout == "True\n", done.stderr
