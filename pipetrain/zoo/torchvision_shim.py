"""The only module that imports torchvision."""

from pipetrain.data.libraries import torchvision_import

torchvision_import.install()

import torchvision  # noqa: E402
from torchvision import datasets, models, transforms  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

__all__ = ["datasets", "models", "torchvision", "transforms", "v2"]
