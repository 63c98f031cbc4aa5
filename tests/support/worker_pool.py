"""Runs many jobs over the same worker processes, as the launcher would start them one by one."""

import contextlib
import json
import os
import random
import socket
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp
from support.methods import MethodCase
from torch import nn

from pipetrain.launch.worker import main, simulate
from pipetrain.run.job import Job

CONFIG: dict[str, Any] = {
    "dataset": {
        "_target_": "pipetrain.data.synthetic.synthetic_images",
        "channels": 1,
        "classes": 4,
        "size": 8,
        "train": 22,
        "eval": 10,
        "shuffle": True,
    },
    "model": {"_target_": "support.worker_pool.small_model"},
    "loss": {"_target_": "pipetrain.losses.CrossEntropy"},
    "lr_schedule": {"_target_": "pipetrain.optim.lr_schedules.Polynomial", "unit": "step"},
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4},
    "train": {
        "epochs": 2,
        "max_steps": None,
        "batch_size": 4,
        "microbatches": 1,
        "recompute": False,
        "recompute_boundaries": None,
        "target": None,
    },
    "phases": None,
    "trace": False,
    "eval": {"every_epochs": 1, "batch_size": None},
    "checkpoint": {"at_start": False, "every_epochs": 0, "every_steps": None},
    "launch": {"hang_timeout": 60.0},
    "log": {"every_steps": 1},
    "seed": 3,
}


class Relay(nn.Module):
    """A layer that passes a skip tensor, an integer tensor and a mask beside its output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x, skip=None, ids=None, mask=None):
        if skip is None:
            skip, ids, mask = x, (x[:, 0] > 0).long(), x[:, :1] > 0.5
        return nn.functional.relu(self.norm(self.conv(x))), skip, ids, mask


class Join(nn.Module):
    """Where the relayed tensors are used; drops some, in dropout and by the mask."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.embedding = nn.Embedding(2, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x, skip, ids, mask):
        hidden = (x + skip).masked_fill(mask, 0.0).flatten(2).transpose(1, 2)
        return self.dropout(self.linear(hidden + self.embedding(ids).flatten(1, 2)))


class Recurrent(nn.Module):
    """An LSTM, whose output is not contiguous."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x):
        return self.lstm(x.transpose(0, 1).contiguous().transpose(0, 1))[0].transpose(1, 2)


class Pool(nn.Module):
    def forward(self, x):
        return x.mean(2)


def small_model(channels: int, classes: int) -> nn.Module:
    from pipetrain.models.chain import LayerChain

    width = 6
    module = nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1),
        Relay(width),
        Relay(width),
        Join(width),
        Recurrent(width),
        Pool(),
        nn.Linear(width, classes),
    )
    return LayerChain(module, list(module))


def bounds(num_stages: int) -> list[tuple[int, int]]:
    """Cuts beside the relays and behind the LSTM."""
    cuts = {1: [], 2: [2], 3: [2, 5], 4: [1, 2, 5]}[num_stages]
    return list(zip([0, *cuts], [*cuts, 7], strict=True))


def phase(case: str | MethodCase, **end: int) -> dict[str, Any]:
    """An entry of `phases`, resolved; `end` is steps or epochs."""
    sections = MethodCase.named(case).sections()
    return {**sections, "steps": None, "epochs": None, **end, "names": _names(case)}


def _names(case: str | MethodCase) -> dict[str, str]:
    method, schedule = MethodCase.named(case)
    return {"method": case if isinstance(case, str) else method.name, "schedule": schedule.name}


def job(run: Path, case: str | MethodCase, num_stages: int, **changes: Any) -> Job:
    """A tiny run; `changes` name settings, such as train={"microbatches": 2}."""
    config = {**json.loads(json.dumps(CONFIG)), **MethodCase.named(case).sections()}
    for section, values in changes.items():
        config[section] = {**config[section], **values} if isinstance(values, dict) else values
    names = {**_names(case), "model": "small", "dataset": "synthetic_images"}
    plan = [{"layers": last - first, "parameters": 1} for first, last in bounds(num_stages)]
    return Job(config, names, str(run), bounds(num_stages), plan, threads=1, device=os.environ.get("DEVICE", "cpu"))


def simulated(job: Job) -> dict[str, Any]:
    """The summary of the simulated run."""
    Path(job.run).mkdir(parents=True, exist_ok=True)
    job.config["executor"] = {"name": "simulated"}
    return simulate(job, lambda record: None)


def distributed(jobs: list[Job]) -> list[dict[str, Any]]:
    """The summaries of the distributed runs of `jobs`, all on as many processes."""
    for each in jobs:
        each.config["executor"] = {"name": "distributed"}
        Path(each.run).mkdir(parents=True, exist_ok=True)
    mp.spawn(_process, (jobs, _free_ports(len(jobs))), nprocs=jobs[0].placement.num_processes)
    return [json.loads((Path(each.run) / "summary.json").read_text()) for each in jobs]


def _process(rank: int, jobs: list[Job], ports: list[int]) -> None:
    for each, port in zip(jobs, ports, strict=True):
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(each.placement.num_processes),
            MASTER_ADDR="localhost",
            MASTER_PORT=str(port),
        )
        main(each)


def _free_ports(count: int) -> list[int]:
    """All different, as a worker that is ahead must not reach the store of the job before.

    Below the ports that systems hand out by themselves, so that none is taken by the time its job comes; tests that
    run beside each other take theirs from different ranges.
    """
    free = []
    first = 20_000 + 1_500 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8)
    for port in random.SystemRandom().sample(range(first, first + 1_500), 4 * count):
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("localhost", port))
            free.append(port)
    return free[:count]
