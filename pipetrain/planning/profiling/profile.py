"""The profile of a configured model, measured or read from a file."""

import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.multiprocessing import start_processes

from pipetrain.data.loader import Loader
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.messages.links import given_bytes_per_s
from pipetrain.engine.models.chain import LayerChain, trainable_weights
from pipetrain.engine.processes import usable_cores
from pipetrain.engine.tensors import Tensors
from pipetrain.planning.partition.from_file import PartitionFromPlan
from pipetrain.planning.profile.profile import NO_READING, LoaderTime, Profile, ProfiledWeight
from pipetrain.planning.profile.profile_file import read_profile
from pipetrain.planning.profiling.layer_times import Measuring, Minibatch, measured_model
from pipetrain.planning.profiling.link_speed import LinkSpeed, measured_link
from pipetrain.runner.config.instantiate import OBJECT
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.finegrained import FineGrained
from pipetrain.runner.partition.shared_weight import SharedWeight
from pipetrain.runner.tracking.progress import counting, status
from pipetrain.runner.training.components.arithmetic import build_arithmetic
from pipetrain.runner.training.components.data import Data, build_data
from pipetrain.runner.training.components.loss import build_loss
from pipetrain.runner.training.components.machine import device_at, device_of
from pipetrain.runner.training.components.model import build_model
from pipetrain.runner.training.components.pipeline import build_partition_rule, build_schedules, placement_of
from pipetrain.runner.training.provenance import machine, occasion

_profiles: dict[str, Profile] = {}
"""Profiles that this process has measured, by what they depend on, so that runs of a sweep have the same cuts."""


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
    how = _measuring(settings, data)
    targets = (settings.model.target, settings.dataset.target, settings.loss)
    if any(each.path.startswith(OBJECT) for each in targets):  # which two objects may share
        return _new_profile(settings, data, chain, how)
    switches = how.deterministic, how.tf32, how.splits, settings.planner.bandwidth, given_bytes_per_s()
    key = repr((settings.model, settings.dataset, settings.loss, settings.train.batch_size, computation(how), switches))
    if key not in _profiles:
        _profiles[key] = _new_profile(settings, data, chain, how)
    return _profiles[key]


def _new_profile(settings: Settings, data: Data, chain: LayerChain, how: Measuring) -> Profile:
    now = occasion()
    # a process never releases all memory of a GPU, which the stages need
    if how.device.type == "cpu":
        content = _measured(settings, data, chain, next(data.train.samples(0, 0, 1)), how)
    else:
        content = measure_in_subprocess(_measured_again, settings)
    profile = _with_weights(Profile.from_json(content), chain)
    profile = replace(profile, provenance={**profile.provenance, **now})
    if not settings.planner.bandwidth:
        return profile
    link = _link(how.device.type, given_bytes_per_s())
    return replace(profile, bytes_per_s=link.bytes_per_s, message_work=link.message_work)


@functools.cache
def _link(device: str, _slowed_to: float | None) -> LinkSpeed:
    """Speed of a link between two workers, measured once by each process."""
    with status("measuring the messages between two workers"):
        return measured_link(device)


def measure_in_subprocess(measure: Callable[..., object], *args: object) -> Any:
    """Result, as JSON, of a function that is called in another process.

    Raises:
        ConfigError: the function raised one.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        start_processes(_measure, args=(path, measure, args), nprocs=1, start_method="spawn")
        result = json.loads(path.read_text())
    if "error" in result:
        raise ConfigError(result["error"])
    return result["measured"]


def _measure(_rank: int, path: Path, measure: Callable[..., object], args: tuple[object, ...]) -> None:
    try:
        result = {"measured": measure(*args)}
    except ConfigError as error:
        result = {"error": str(error)}
    path.write_text(json.dumps(result))


def _of_same_model(settings: Settings, profile: Profile, chain: LayerChain) -> Profile:
    """The profile, if its layers match the model's."""
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
        loss=build_loss(settings.loss, data.dataset),
        arithmetic=build_arithmetic(settings.train),
        device=device_at(device, 0),
        threads=settings.threads or max(1, usable_cores() // _processes(settings)),
        num_microbatches=settings.train.microbatches,
        repeats=settings.planner.repeats,
        seed=settings.seed,
        deterministic=settings.deterministic,
        tf32=settings.train.tf32,
        splits=_splits_backward(settings),
    )


def _splits_backward(settings: Settings) -> bool:
    try:
        return any(each.splits_backward for each in build_schedules(settings.phases))
    except ConfigError:  # which a run raises
        return False


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
    return placement_of(settings, stages).num_processes if isinstance(stages, int) else usable_cores()


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
        input_bytes=sum(tensor.nbytes for tensor in minibatch[0]),
        target_bytes=sum(tensor.nbytes for tensor in minibatch[1]),
    ).to_json()


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
