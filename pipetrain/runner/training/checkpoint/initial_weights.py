"""Weights that a run starts from: those in a file of named tensors, or in the checkpoint of another run."""

import contextlib
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    with _naming(setting):
        path = Path(settings.weights).expanduser()
        path = store.newest_undamaged(path) if path.is_dir() else path.resolve()
        tensors = _read(path)
        sha256 = manifest.sha256_of(path / manifest.NAME if path.is_dir() else path)
    match = _Match(setting, tensors, chain)
    match.check(strict=settings.strict)
    averaged = contents.averages_of(path) if path.is_dir() else None
    how = [] if averaged is None else [f"averaged with {averaged}"]
    notes = [", ".join([f"{setting}: {match.loaded} are loaded", *how, *match.conversions()])]
    if match.listed:
        notes.append(f"model.strict=false: {match.kept} keep the values drawn from the seed; {match.listed}")
    return InitialWeights(path, sha256, match.sources, notes)


@contextlib.contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Puts the setting before the message of an error, which becomes a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from error
    except OSError as error:
        raise ConfigError(f"{setting}: {error.strerror or one_line(error)}") from error


class _Match:
    """The tensors of a file that fit a model.

    Args:
        setting: names the file.
        tensors: of the file.
        chain: the model.

    Attributes:
        sources: name of a weight or buffer in the model -> its name in the file.
        kept: number of the model's tensors that the file does not have.

    Raises:
        ConfigError: two names of a tied weight have different values in the file.
    """

    def __init__(self, setting: str, tensors: Mapping[str, Tensor], chain: LayerChain) -> None:
        self._setting, self._tensors = setting, tensors
        self._expected, aliases = chain.module.state_dict(), chain.aliases()
        self.sources: dict[str, str] = {}
        self._missing: list[str] = []
        self._different: list[str] = []
        for name in self._expected:
            if name not in aliases:  # its first name stands for it
                self._find(name, _names_of_value(name, aliases, chain.untied))
        self._unexpected = [name for name in tensors if name not in self._expected]
        for name, first in aliases.items():
            if name in tensors and first in tensors and not torch.equal(tensors[name], tensors[first]):
                raise ConfigError(
                    f"{setting}: {first} and {name} differ in it, but are one weight of the model; model.untie=true "
                    "separates them"
                )
        self.kept = len(self._missing) + len(self._different)

    def _find(self, name: str, names: Sequence[str]) -> None:
        """Looks for a tensor of the model under some names."""
        source, target = next((each for each in names if each in self._tensors), None), self._expected[name]
        if source is None:
            self._missing.append(name)
        elif not _fits(self._tensors[source], target):
            self._different.append(f"{name} {_form(self._tensors[source])} instead of {_form(target)}")
        else:
            self.sources[name] = source

    @property
    def loaded(self) -> str:
        """How many tensors of the model the file has."""
        return f"{len(self.sources)} of the model's {len(self.sources) + self.kept} tensors"

    @property
    def listed(self) -> str:
        """Names of tensors that do not fit; empty if all do."""
        faults = {"missing": self._missing, "unexpected": self._unexpected, "different": self._different}
        return "; ".join(f"{fault}: {_some(names)}" for fault, names in faults.items() if names)

    def check(self, *, strict: bool) -> None:
        """Raises a ConfigError if no tensor fits, or if `strict` and one does not."""
        if not self.sources and (prefix := _prefix(self._missing, self._tensors)) is not None:
            raise ConfigError(
                f"{self._setting}: its names start with `{prefix}`, as of a wrapped model; save the model inside: "
                f"torch.save(model.{prefix}state_dict(), FILE)"
            )
        if not self.sources:
            raise ConfigError(f"{self._setting}: no tensor of it fits this model: {self.listed}")
        if self.listed and strict:
            raise ConfigError(f"{self._setting}: {self.listed}; model.strict=false loads {self.loaded}")

    def conversions(self) -> list[str]:
        """The types that loading converts."""
        dtypes = {(self._tensors[source].dtype, self._expected[name].dtype) for name, source in self.sources.items()}
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
