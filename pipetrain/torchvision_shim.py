"""The only module that imports torchvision, made to work beside a torch that its native library was not built for."""

import torch

_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_schemas: torch.library.Library | None = None  # the schemas live as long as the library object does

# A torchvision wheel built for CUDA cannot load its native library beside a CPU torch, and its import then fails for
# want of two operators that the models and data sets never call. Their schemas are all that the import needs; where the
# native library does load, the first import succeeds and nothing is defined here.
try:
    import torchvision
except RuntimeError as error:
    if "torchvision::" not in str(error):
        raise
    _schemas = torch.library.Library("torchvision", "FRAGMENT")
    for _operator in ("nms", "qnms"):
        _schemas.define(_operator + _NMS)
    import torchvision

from torchvision import datasets, models, transforms  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

__all__ = ["datasets", "models", "torchvision", "transforms", "v2"]
