"""torchvision is imported with and without its native library."""

import pytest
from support.processes import python

# What a native library that loads does before torchvision's own check: the operators exist.
AS_IF_LOADED = """
import torch
library = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from pipetrain.data.libraries import torchvision_import
from pipetrain.zoo import torchvision_shim
assert not torchvision_import._schemas
"""
AS_IT_IS = "from pipetrain.zoo.torchvision_shim import datasets, models, transforms, v2; models.resnet18"


@pytest.mark.slow  # test_families.py imports it as well
def test_torchvision_imports_without_native_library():
    done = python(AS_IT_IS)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_schemas_that_exist_are_not_defined_again():
    result = python(AS_IF_LOADED)
    if result.returncode and python("import torchvision").returncode == 0:
        pytest.skip("the native library loads here and defines the operators itself")
    assert result.returncode == 0, result.stderr
