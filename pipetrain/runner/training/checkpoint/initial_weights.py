"""Weights that a run starts from: those in a file of named tensors, or in the checkpoint of another run."""

import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.stage.base import BaseStage
from pipetrain.runner.config.settings import ModelSettings
from pipetrain.runner.training.checkpoint import contents, manifest, store, tensor_file

_LISTED = 3
"""Names of tensors that a message lists."""


@dataclass(frozen=True)
class InitialWeights:
    """Weights and buffers that a run starts from, found to fit its model.

    Attributes:
        path: a file, or the folder of a checkpoint.
        sha256: of the file, or of the checkpoint's manifest, which lists the hashes of its files.
        sources: name of a weight or buffer in the model -> its name in the file.
        notes: lines for the user.
    """

    path: Path
    sha256: str
    sources: Mapping[str, str]
    notes: Sequence[str]

    def load_into(self, stage: BaseStage) -> None:
        """Copies the stage's tensors from the file, converted to its dtypes; only these tensors are read.

        The average of weights, if there is one, starts from them as well.
        """
        targets = {name: tensor for name, tensor in stage.state().items() if name in self.sources}
        tensors = _read(self.path, {self.sources[name] for name in targets})
        with torch.no_grad():
            for name, target in targets.items():
                target.copy_(tensors[self.sources[name]])
        if stage.weights.average is not None:
            stage.weights.average.load(stage.weights.trainable)


def initial_weights(settings: ModelSettings, chain: LayerChain) -> InitialWeights | None:
    """The weights that `model.weights` names; None if it is not set, or the model's own constructor takes it.

    A tied weight may have any of its names in the file. With `model.untie`, a weight that the file lacks starts from
    the one that it was tied to.

    Raises:
        ConfigError: there is no such file, it holds something else, or its tensors do not fit the model.
    """
    if settings.weights is None or settings.constructor_takes_weights:
        return None
    setting = f"model.weights={settings.weights}"
    try:
        path = Path(settings.weights).expanduser()
        path = store.newest_undamaged(path) if path.is_dir() else path.resolve()
        tensors = _read(path)
        sha256 = manifest.sha256_of(path / manifest.NAME if path.is_dir() else path)
        sources, kept, listed = _matched(tensors, chain)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from error
    except OSError as error:
        raise ConfigError(f"{setting}: {error.strerror or one_line(error)}") from error
    loaded = f"{len(sources)} of the model's {len(sources) + kept} tensors"
    if listed and settings.strict:
        raise ConfigError(f"{setting}: {listed}; model.strict=false loads {loaded}")
    averaged = contents.averages_of(path) if path.is_dir() else None
    how = [] if averaged is None else [f"averaged with {averaged}"]
    notes = [", ".join([f"{setting}: {loaded} are loaded", *how, *_conversions(sources, tensors, chain)])]
    if listed:
        notes.append(f"model.strict=false: {kept} keep the values drawn from the seed; {listed}")
    return InitialWeights(path, sha256, sources, notes)


def _matched(tensors: Mapping[str, Tensor], chain: LayerChain) -> tuple[dict[str, str], int, str]:
    """Name of a weight or buffer in the model -> in the file, the number of those without, and what does not fit.

    Raises:
        ConfigError: no tensor fits, or two names of a tied weight have different values in the file.
    """
    expected, aliases = chain.module.state_dict(), chain.aliases()
    sources, missing, different = dict[str, str](), list[str](), list[str]()
    for name, target in expected.items():
        if name in aliases:  # its first name stands for it
            continue
        source = next((each for each in _names_of_value(name, aliases, chain.untied) if each in tensors), None)
        if source is None:
            missing.append(name)
        elif not _fits(tensors[source], target):
            different.append(f"{name} {_form(tensors[source])} instead of {_form(target)}")
        else:
            sources[name] = source
    for name, first in aliases.items():
        if name in tensors and first in tensors and not torch.equal(tensors[name], tensors[first]):
            raise ConfigError(
                f"{first} and {name} differ in it, but are one weight of the model; model.untie=true separates them"
            )
    unexpected = [name for name in tensors if name not in expected]
    faults = {"missing": missing, "unexpected": unexpected, "different": different}
    listed = "; ".join(f"{fault}: {_some(names)}" for fault, names in faults.items() if names)
    if not sources and (prefix := _prefix(missing, tensors)) is not None:
        raise ConfigError(
            f"its names start with `{prefix}`, as of a wrapped model; save the model inside: "
            f"torch.save(model.{prefix}state_dict(), FILE)"
        )
    if not sources:
        raise ConfigError(f"no tensor of it fits this model: {listed}")
    return sources, len(missing) + len(different), listed


def _conversions(sources: Mapping[str, str], tensors: Mapping[str, Tensor], chain: LayerChain) -> list[str]:
    """The types that loading converts."""
    expected = chain.module.state_dict()
    dtypes = {(tensors[source].dtype, expected[name].dtype) for name, source in sources.items()}
    return sorted(f"{_plain(one)} converted to {_plain(other)}" for one, other in dtypes if one != other)


def _prefix(missing: Sequence[str], tensors: Collection[str]) -> str | None:
    """What precedes the names of all `missing` tensors in the file, such as `module.`; None if nothing does."""
    ends = (each.removesuffix(missing[0]) for each in tensors if missing and each.endswith(f".{missing[0]}"))
    return next((start for start in ends if all(f"{start}{name}" in tensors for name in missing)), None)


def _read(path: Path, names: Collection[str] | None = None) -> dict[str, Tensor]:
    """All tensors, or those with these names. Their memory is the file, mapped: nothing is copied.

    Raises:
        ConfigError: this is no file of named tensors.
        OSError: it cannot be read.
    """
    if path.is_dir():
        return contents.model_state(path, averaged=True, names=names)
    if path.suffix != tensor_file.SUFFIX:
        return {name: tensor for name, tensor in _torch_load(path).items() if names is None or name in names}
    try:
        with safe_open(path, framework="pt") as tensors:
            return {name: tensors.get_tensor(name) for name in tensors.keys() if names is None or name in names}  # noqa: SIM118
    except SafetensorError as error:
        raise ConfigError(f"not a safetensors file, or damaged: {one_line(error)}") from error


def _torch_load(path: Path) -> dict[str, Tensor]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError:
        raise
    except Exception as error:  # what it raises for a file of another format may be anything
        raise ConfigError(
            "torch.load cannot read it; save only the tensors, with torch.save(model.state_dict(), FILE) or as a "
            f"{tensor_file.SUFFIX} file"
        ) from error
    if not (isinstance(loaded, Mapping) and loaded and all(isinstance(each, Tensor) for each in loaded.values())):
        raise ConfigError(f"holds a {type(loaded).__name__}, not a state dict: torch.save(model.state_dict(), FILE)")
    return dict(loaded)


def _names_of_value(name: str, aliases: Mapping[str, str], untied: Mapping[str, str]) -> list[str]:
    """The names that a weight's value may have in a file, its own first."""
    shared = {**aliases, **untied}
    return [name, *(each for each, first in shared.items() if first == name), *filter(None, [shared.get(name)])]


def _fits(tensor: Tensor, target: Tensor) -> bool:
    kinds = [(each.is_floating_point(), each.is_complex()) for each in (tensor, target)]
    return tensor.shape == target.shape and kinds[0] == kinds[1]


def _form(tensor: Tensor) -> str:
    return f"{_plain(tensor.dtype)} {tuple(tensor.shape)}"


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + rest
