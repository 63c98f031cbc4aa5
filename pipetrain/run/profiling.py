"""The profile of a configured model: remembered, or measured."""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.executors.messages.slow_link import given_bytes_per_s
from pipetrain.models.chain import LayerChain
from pipetrain.planner.finegrained import FineGrained
from pipetrain.planner.profile import Profile, read
from pipetrain.planner.shared_weights import SharedWeight
from pipetrain.run.build.data import Data, build_data
from pipetrain.run.build.loss import build_loss
from pipetrain.run.build.model import build_arithmetic, build_chain
from pipetrain.run.build.pipeline import build_rule
from pipetrain.run.cores import usable_cores
from pipetrain.run.device import device_at, device_of
from pipetrain.run.layer_times import Measuring, Minibatch, measured_layers
from pipetrain.run.link_speed import LinkSpeed, measured_link
from pipetrain.run.measurement_cache import Measurement
from pipetrain.run.measuring_process import measured_apart
from pipetrain.run.profile_key import computation, profile_key, shape_of
from pipetrain.run.provenance import machine, occasion
from pipetrain.run.reading_time import measured_reading
from pipetrain.tracking.progress import counting, status

_WHEN = ("measured_at", "load_average")


def profile_of(settings: Settings) -> Profile:
    """The profile of the model that these settings of a run choose.

    Raises:
        ConfigError: the model or its data cannot be built.
    """
    settings.check_targets()
    if isinstance(build_rule(settings), FineGrained):
        raise ConfigError("partition=finegrained cuts layers apart, and a profile is of whole layers; leave it out")
    data = build_data(settings)
    chain = build_chain(settings.model.target, data.dataset, settings.seed, **settings.model.build_options)
    return profile_of_chain(settings, data, chain)


def profile_of_chain(settings: Settings, data: Data, chain: LayerChain) -> Profile:
    """The same of a model that is built already, or of the file that `profile` names.

    Raises:
        ConfigError: the file is no profile, or is of another model.
    """
    if settings.profile is not None:
        return _of_same_model(settings, read(Path(settings.profile)), chain)
    minibatch, how = _minibatch(data), _measuring(settings, data)
    measurement = Measurement.of("profile", {**profile_key(settings, chain, minibatch, how), **_switches(how)})
    profile, now = _remembered(settings, measurement), occasion()
    if profile is None:
        # a process never gives back all that it took of a GPU, which the stages are to have to themselves
        apart = how.device.type != "cpu"
        profile = _measured_apart(settings) if apart else _measured(settings, data, chain, minibatch, how)
        profile = replace(profile, provenance={**profile.provenance, **now})
        _keep(settings, measurement, profile.to_json())
    if not settings.planner.bandwidth:
        return profile
    link, when, remembered = _link(settings, how.device.type, now)
    return replace(
        profile,
        bytes_per_s=link.bytes_per_s,
        message_work=link.message_work,
        provenance={**profile.provenance, "link": when},
        remembered=profile.remembered or remembered,
    )


def _of_same_model(settings: Settings, profile: Profile, chain: LayerChain) -> Profile:
    """The profile.

    Raises:
        ConfigError: its layers are not those of the model.
    """
    labels = [layer.label for layer in profile.layers]
    if labels == chain.labels and profile.is_chain:
        return profile
    others = (
        f"layer {i} is {a}, not {b}" for i, (a, b) in enumerate(zip(labels, chain.labels, strict=False)) if a != b
    )
    difference = next(others, f"it has {len(labels)} layers, not {len(chain)}")
    raise ConfigError(
        f"profile={settings.profile}: of another model than model={settings.choices['model']}: {difference}; "
        "`pipetrain profile` measures this one"
    )


def _measuring(settings: Settings, data: Data) -> Measuring:
    device = device_of(settings.device)
    return Measuring(
        loss=build_loss(settings, data.dataset),
        arithmetic=build_arithmetic(settings.train),
        device=device_at(device, 0),
        threads=settings.threads or max(1, usable_cores() // _processes(settings)),
        num_microbatches=settings.train.microbatches,
        repeats=settings.planner.repeats,
        seed=settings.seed,
        deterministic=settings.deterministic,
        tf32=settings.train.tf32,
    )


def _processes(settings: Settings) -> int:
    """How many a run of these settings has; one for each core where nobody knows yet."""
    options = settings.partition.options
    cuts = options.get("boundaries", options.get("ppv"))
    stages = options.get("stages") or (len(cuts) + 1 if isinstance(cuts, list) else None)
    return stages if isinstance(stages, int) else usable_cores()


def _measured_apart(settings: Settings) -> Profile:
    """The profile, measured in a process that ends."""
    return Profile.from_json(measured_apart(_measured_again, settings))


def _measured_again(settings: Settings) -> Any:
    """The profile, as JSON, in a process that has yet to build the model and its data."""
    data = build_data(settings)
    chain = build_chain(settings.model.target, data.dataset, settings.seed, **settings.model.build_options)
    return _measured(settings, data, chain, _minibatch(data), _measuring(settings, data)).to_json()


def _minibatch(data: Data) -> Minibatch:
    """What passes through the model: the first of the run."""
    return next(data.train.samples(0, 0, 1))


def _switches(how: Measuring) -> dict[str, Any]:
    """The switches that are not as torch has them: what was measured before there were any still counts."""
    tf32 = {} if how.tf32 is None else {"tf32": how.tf32}
    return {**tf32, **({"deterministic": True} if how.deterministic else {})}


def _measured(settings: Settings, data: Data, chain: LayerChain, minibatch: Minibatch, how: Measuring) -> Profile:
    with status("measuring how long data is read"):
        reading = measured_reading(data.train, how.repeats)
    with counting(f"measuring {len(chain)} layers", how.passes) as bar:
        layers = measured_layers(chain, minibatch, how, bar.update)
    edges = tuple((i, i + 1) for i in range(len(layers) - 1))
    return Profile(
        layers,
        edges,
        len(minibatch[0][0]),
        provenance=_provenance(settings, minibatch, how),
        shared_weights=tuple(SharedWeight(*each) for each in chain.shared_weights().items()),
        reading=reading,
    )


def _provenance(settings: Settings, minibatch: Minibatch, how: Measuring) -> Mapping[str, Any]:
    return {
        "model": settings.choices.get("model"),
        "dataset": settings.choices.get("dataset"),
        "inputs": [shape_of(tensor) for tensor in minibatch[0]],
        **computation(how),
    }


def _link(settings: Settings, device: str, now: Mapping[str, Any]) -> tuple[LinkSpeed, Mapping[str, Any], bool]:
    """Between two workers, when it was measured, and whether that was before.

    Raises:
        ConfigError: links are to be slowed down to what is no bandwidth.
    """
    devices = torch.cuda.device_count() if device == "cuda" else 0
    slowed = given_bytes_per_s()
    key = {"device": device, "devices": devices, **machine(device)} | ({} if slowed is None else {"slowed_to": slowed})
    measurement = Measurement.of("link", key)
    if settings.planner.cache == "use":
        with contextlib.suppress(ConfigError):
            content = measurement.load()
            return LinkSpeed.from_json(content), {name: content[name] for name in _WHEN if name in content}, True
    with status("measuring the messages between two workers"):
        link = measured_link(device)
    _keep(settings, measurement, {**asdict(link), **now})
    return link, now, False


def _remembered(settings: Settings, measurement: Measurement) -> Profile | None:
    if settings.planner.cache == "use":
        with contextlib.suppress(ConfigError):
            return replace(Profile.from_json(measurement.load()), remembered=True)
    return None


def _keep(settings: Settings, measurement: Measurement, measured: object) -> None:
    if settings.planner.cache != "ignore":
        measurement.store(measured)
