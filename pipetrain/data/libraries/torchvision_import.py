"""Makes every import of torchvision work with a torch that its native library was not built for."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from torch.library import Library

_NAME = "torchvision"
_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_schemas: list["Library"] = []  # the schemas live as long as the library object does


def install() -> None:
    """Lets torchvision be imported from now on. Imports neither it nor torch."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds torchvision as the usual finders do, and loads it with the patched loader."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in others if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Imports torchvision once more where its native library could not be loaded.

    A wheel built for CUDA cannot load its native library with a CPU torch, and its import then fails for lack of two
    operators that the models and data sets never call. Their schemas are all that the import needs; where the native
    library does load, the first import succeeds and nothing is defined here.
    """

    @override
    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        except RuntimeError as error:
            if f"{_NAME}::" not in str(error):
                raise
            import torch

            library = torch.library.Library(_NAME, "FRAGMENT")
            for operator in ("nms", "qnms"):
                library.define(operator + _NMS)
            _schemas.append(library)
            super().exec_module(module)
