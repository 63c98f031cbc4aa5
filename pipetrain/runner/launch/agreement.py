"""Checks that all processes of a run agree on settings, stages and data."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist

from pipetrain.data.fingerprint import difference
from pipetrain.engine.errors import ConfigError, as_configured
from pipetrain.engine.executors.messages import control
from pipetrain.runner.config.settings_diff import differences
from pipetrain.runner.partition.run_plan import Plan
from pipetrain.runner.training.job import Job

_OF_EACH_PROCESS = (
    "device", "threads", "dataset.download", "dataset.workers", "dataset.prefetch", "dataset.pin_memory",
)  # fmt: skip
"""Settings that may differ between processes: they do not change what is computed."""
_VERSIONS = ("pipetrain_version", "torch_version", "python_version", "git_commit", "git_dirty")
_SPLITS = {"train": "the training set", "eval": "the evaluation set"}


def agree(job: Job, rank: int) -> list[str]:
    """Compares the settings, stages and data of all processes with the first one's; a collective call.

    Returns:
        Warnings on versions in which processes differ, in process 0.

    Raises:
        ConfigError: two processes differ; the same in all of them.
    """
    own = json.loads(json.dumps(_particulars(job)))
    first = control.broadcast_json(own)
    fault = next(_faults(first, own), None)
    told = control.all_gather_json([fault, _other_versions(first, own)])
    for process, (fault, _) in enumerate(told):
        if fault is not None:
            with control.lost_stage_on_error():
                dist.barrier()  # a process that ends now breaks the connections of processes that still read this
            raise ConfigError(
                f"processes 0 and {process} differ in {fault}; they need the same settings, code and data"
            )
    unlike = [(process, versions) for process, (_, versions) in enumerate(told) if versions]
    if rank or not unlike:
        return []
    process, versions = unlike[0]
    others = f", as do {len(unlike) - 1} more" if len(unlike) > 1 else ""
    return [f"warning: processes 0 and {process} differ in {versions}{others}: results may differ"]


def _particulars(job: Job) -> dict[str, Any]:
    return {
        "settings": job.settings.stored,
        "choices": job.settings.choices,
        "stages": _stages(job.plan),
        "data": job.data,
        "versions": {name: job.provenance.get(name) for name in _VERSIONS},
    }


def _stages(plan: Plan) -> list[str]:
    counts = plan.replicas or [1] * len(plan.stages)
    return [
        f"layers {stage.first} to {stage.last - 1}, {stage.parameters} weights, {count} replicas"
        for stage, count in zip(plan.stages, counts, strict=True)
    ]


def _faults(first: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Differences that are not allowed, with the values of the first process and of this one."""
    for each in differences(first["settings"], own["settings"], (first["choices"], own["choices"])):
        if each.setting not in _OF_EACH_PROCESS and not each.is_place:
            yield f"{each.setting}: {as_configured(each.old)} and {as_configured(each.new)}"
    if len(first["stages"]) != len(own["stages"]):
        yield f"the number of stages: {len(first['stages'])} and {len(own['stages'])}"
    for stage, (one, other) in enumerate(zip(first["stages"], own["stages"], strict=False)):
        if one != other:
            yield f"stage {stage}: {one}, and {other}"
    for name, fingerprint in first["data"].items():
        if name in own["data"] and (found := difference(fingerprint, own["data"][name])):
            what, one, other = found
            yield f"{what} of {_SPLITS[name]}: {one} and {other}"


def _other_versions(first: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    before, now = first["versions"], own["versions"]
    unlike = [name for name in _VERSIONS if None not in (before[name], now[name]) and before[name] != now[name]]
    return "; ".join(f"{name} {before[name]} and {now[name]}" for name in unlike)
