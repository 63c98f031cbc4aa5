"""The profile of a configured model: remembered, or measured."""

import contextlib
import hashlib
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.config.instantiate import OBJECT, Target
from pipetrain.config.settings import Settings
from pipetrain.data.loader import Loader
from pipetrain.errors import ConfigError
from pipetrain.executors.messages.links import given_bytes_per_s
from pipetrain.libraries.processes import usable_cores
from pipetrain.models.chain import LayerChain, trainable_weights
from pipetrain.planner.json_reader import from_json
from pipetrain.planner.partition.finegrained import FineGrained
from pipetrain.planner.partition.from_file import PartitionFromPlan
from pipetrain.planner.profile.profile import NO_READING, LoaderTime, Profile, ProfiledWeight, SharedWeight
from pipetrain.planner.profile.profile_file import read_profile
from pipetrain.tensors import Tensors
from pipetrain.tracking.progress import counting, status
from pipetrain.training.builders.data import Data, build_data
from pipetrain.training.builders.loss import build_loss
from pipetrain.training.builders.machine import device_at, device_of
from pipetrain.training.builders.model import build_arithmetic, build_model
from pipetrain.training.builders.pipeline import build_partition_rule, build_schedule
from pipetrain.training.profiling.layer_times import Measuring, Minibatch, measured_model
from pipetrain.training.profiling.link_speed import LinkSpeed, measured_link
from pipetrain.training.profiling.measurement_cache import measure_in_subprocess, remembered
from pipetrain.training.provenance import machine, occasion

_WHEN = ("measured_at", "load_average")


def profile_of(settings: Settings) -> Profile:
    """The profile of the model that these settings of a run choose.

    Raises:
        ConfigError: the model or its data cannot be built.
    """
    settings.check_targets()
    if isinstance(build_partition_rule(settings), FineGrained):
        raise ConfigError("partition=finegrained cuts layers apart, and a profile is of whole layers; leave it out")
    data = build_data(settings)
    chain = build_model(settings, data.dataset)
    return profile_of_chain(settings, data, chain)


def profile_of_chain(settings: Settings, data: Data, chain: LayerChain) -> Profile:
    """The profile of a model that is built already, or in the file that `profile` names.

    Raises:
        ConfigError: the file is no profile, or is of another model.
    """
    if settings.profile is not None:
        return _with_weights(_of_same_model(settings, read_profile(Path(settings.profile)), chain), chain)
    minibatch, how = next(data.train.samples(0, 0, 1)), _measuring(settings, data)
    # switches only if they differ from torch's defaults: measurements from before there were any remain valid
    tf32 = {} if how.tf32 is None else {"tf32": how.tf32}
    switches = tf32 | ({"deterministic": True} if how.deterministic else {})
    key, now = {**profile_key(settings, chain, minibatch, how), **switches}, occasion()

    def measure() -> dict[str, Any]:
        # a process never releases all memory of a GPU, which the stages need
        apart = how.device.type != "cpu"
        given = (settings, data, chain, minibatch, how)
        content = measure_in_subprocess(_measured_again, settings) if apart else _measured(*given)
        return {**content, "provenance": {**content["provenance"], **now}}

    profile, known = remembered("profile", key, settings.planner.cache, Profile.from_json, measure)
    if known and settings.dataset.target.path.startswith(OBJECT):  # one of the same class may be slower to read
        profile = replace(profile, reading=measure_reading(data.train, how.repeats))
    # earlier entries lack the bytes
    profile = replace(_with_weights(profile, chain), input_bytes=sum(tensor.nbytes for tensor in minibatch[0]))
    if not settings.planner.bandwidth:
        return replace(profile, remembered=known)
    link, when, link_known = _link(settings, how.device.type, now)
    return replace(
        profile,
        bytes_per_s=link.bytes_per_s,
        message_work=link.message_work,
        provenance={**profile.provenance, "link": when},
        remembered=known or link_known,
    )


def _of_same_model(settings: Settings, profile: Profile, chain: LayerChain) -> Profile:
    """The profile, if its layers are those of the model."""
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


def _with_weights(profile: Profile, chain: LayerChain) -> Profile:
    """The profile with the trainable weights of each layer, and which of them carry weights."""
    carrying = set(chain.weight_layers())

    def weights(i: int) -> tuple[ProfiledWeight, ...]:
        names = chain.names(i)
        return tuple(
            ProfiledWeight(names[name], tuple(each.shape), each.element_size())
            for name, each in trainable_weights(chain.layers[i]).items()
        )

    layers = tuple(
        replace(layer, weights=weights(i), carries_weight=i in carrying) for i, layer in enumerate(profile.layers)
    )
    return replace(profile, layers=layers)


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
    """Number of processes of a run; one per core if not known yet."""
    rule, counts = build_partition_rule(settings), settings.replicas.counts
    if counts is None and isinstance(rule, PartitionFromPlan):
        counts = rule.replicas
    if counts is not None:
        return sum(counts)
    options = settings.partition.options
    cuts = options.get("boundaries", options.get("ppv"))
    stages = options.get("stages") or (len(cuts) + 1 if isinstance(cuts, list) else None)
    if not isinstance(stages, int):
        return usable_cores()
    with contextlib.suppress(ConfigError):  # which a run raises
        schedule = build_schedule(settings.phases[0])
        schedule.check(stages, settings.train.microbatches)
        return schedule.placement(stages).num_processes
    return stages


def _measured_again(settings: Settings) -> dict[str, Any]:
    """The profile in a process that has yet to build the model and its data."""
    data = build_data(settings)
    chain = build_model(settings, data.dataset)
    return _measured(settings, data, chain, next(data.train.samples(0, 0, 1)), _measuring(settings, data))


def _measured(
    settings: Settings, data: Data, chain: LayerChain, minibatch: Minibatch, how: Measuring
) -> dict[str, Any]:
    """The profile as JSON."""
    with status("measuring how long data is read"):
        reading = measure_reading(data.train, how.repeats)
    with counting(f"measuring {len(chain)} layers", how.passes) as bar:
        measured = measured_model(chain, minibatch, how, bar.update)
    edges = tuple((i, i + 1) for i in range(len(chain) - 1))
    return Profile(
        measured.layers,
        edges,
        len(minibatch[0][0]),
        provenance={
            "model": settings.choices.get("model"),
            "dataset": settings.choices.get("dataset"),
            "inputs": [shape_of(tensor) for tensor in minibatch[0]],
            **computation(how),
        },
        shared_weights=tuple(SharedWeight(*each) for each in chain.shared_weights().items()),
        reading=reading,
        update_bytes_per_s=measured.update_bytes_per_s,
    ).to_json()


def _link(settings: Settings, device: str, now: Mapping[str, Any]) -> tuple[LinkSpeed, Mapping[str, Any], bool]:
    """(speed of a link between two workers, time of the measurement, True if an earlier command made it)."""
    devices = torch.cuda.device_count() if device == "cuda" else 0
    slowed = given_bytes_per_s()
    key = {"device": device, "devices": devices, **machine(device)} | ({} if slowed is None else {"slowed_to": slowed})

    def read(content: Any) -> tuple[LinkSpeed, Mapping[str, Any]]:
        return from_json(LinkSpeed, content), {name: content[name] for name in _WHEN if name in content}

    def measure() -> dict[str, Any]:
        with status("measuring the messages between two workers"):
            return {**asdict(measured_link(device)), **now}

    (link, when), known = remembered("link", key, settings.planner.cache, read, measure)
    return link, when, known


def profile_key(settings: Settings, chain: LayerChain, minibatch: Minibatch, how: Measuring) -> dict[str, Any]:
    """Everything that the measurements of a model depend on: its code, options, shapes, computation and machine."""
    inputs, targets = minibatch
    return {
        "measured": ["layers", "reading", "update"],  # earlier entries lack the update
        "model": _of_target(settings.model.target) | _of_object(settings.model.target, chain.module),
        "built": {"separate": settings.model.untie, "output": settings.model.output},
        "layers": [
            # only frozen weights say so: entries from before there was a mark remain valid
            [label, [[n, shape_of(w), *([] if w.requires_grad else ["frozen"])] for n, w in layer.named_parameters()]]
            for label, layer in zip(chain.labels, chain.layers, strict=True)
        ],
        "shared_weights": list(chain.shared_weights().items()),
        "loss": _of_target(settings.loss) | _of_object(settings.loss, how.loss),
        "dataset": _of_target(settings.dataset.target),
        "workers": settings.dataset.workers,
        "inputs": [shape_of(tensor) for tensor in inputs],
        "targets": [shape_of(tensor) for tensor in targets],
        **computation(how),
    }


def computation(how: Measuring) -> dict[str, Any]:
    """Hardware, precision and threads of a computation."""
    return {
        "microbatches": how.num_microbatches,
        "precision": how.arithmetic.precision,
        "channels_last": how.arithmetic.channels_last,
        "compile": how.arithmetic.compiled,
        "device": how.device.type,
        "threads": how.threads,
        "repeats": how.repeats,
        **machine(how.device.type),
    }


def shape_of(tensor: Tensor) -> str:
    """The shape and type of a tensor, such as `64x3x32x32 float32`."""
    return f"{'x'.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"


def _of_target(target: Target) -> dict[str, Any]:
    """A target, its options, and the code of the file that it is in, which a user may change."""
    return {"target": target.path, "options": target.options, "code": _code_of(target.path.removeprefix(OBJECT))}


def _of_object(target: Target, built: object) -> dict[str, Any]:
    """Identifies a module given from Python, which has no options, by its submodules, their attributes and their code.

    The repr of a module is not enough: that of an attention leaves out the number of its heads.
    """
    if not target.path.startswith(OBJECT) or not isinstance(built, nn.Module):
        return {}
    content = [[name, part.extra_repr(), _attributes(part)] for name, part in built.named_modules()]
    classes = {f"{type(part).__module__}.{type(part).__qualname__}" for part in built.modules()}
    return {
        "object": hashlib.sha256(json.dumps(content).encode()).hexdigest(),
        "classes": {path: _code_of(path) for path in sorted(classes)},
    }


def _attributes(part: nn.Module) -> list[tuple[str, str]]:
    """Names and values of its own attributes but tensors and parts; without addresses, which no two processes share."""
    own = vars(part).keys() - vars(nn.Module()).keys()
    values = ((name, vars(part)[name]) for name in sorted(own))
    return [
        (name, re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)))
        for name, value in values
        if not isinstance(value, Tensor)
    ]


def _code_of(path: str) -> str | None:
    """Hash of the file of the innermost module on a path; None if no module is found."""
    names = path.split(".")
    modules = (sys.modules.get(".".join(names[:count])) for count in range(len(names), 0, -1))
    file = next((getattr(module, "__file__", None) for module in modules if module is not None), None)
    return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()


def measure_reading(loader: Loader, repeats: int) -> LoaderTime:
    """Time for the first stage to read a minibatch's inputs, and for the last to read its targets.

    They read between their operations. Reading by other processes (`dataset.workers`) takes them no time.

    Args:
        loader: of the training data.
        repeats: number of timed minibatches of the first epoch, after one that is not timed.
    """
    if loader.workers:
        return NO_READING
    last = min(len(loader), 1 + repeats)
    return LoaderTime(_median_s(loader.inputs(0, 0, last)), _median_s(loader.targets(0, 0, last)))


def _median_s(minibatches: Iterator[Tensors]) -> float:
    seconds = []
    began = time.perf_counter()
    for _ in minibatches:
        ended = time.perf_counter()
        seconds.append(ended - began)
        began = ended
    return statistics.median(seconds[1:] or seconds)
