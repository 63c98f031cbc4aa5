"""`data_parallel` beside torch's DistributedDataParallel on the same minibatches."""

import copy
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.forking import forked
from support.methods import METHODS, MethodCase
from support.pipelines import batches, difference, pipeline, sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pipetrain.engine.schedules import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.engine.schedules.sequential import DataParallel

COUNT, SIZE = 2, 4


def data_and_model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))
    return net, torch.randn(48, 1, 8, 8), torch.arange(48) % 4


def theirs(rank, port, path):
    """DistributedDataParallel, the minibatches dealt out in turn; rank 0 leaves its weights."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=COUNT, timeout=timedelta(seconds=60))
    net, inputs, targets = data_and_model()
    model = DistributedDataParallel(net)
    optimizer = sgd(list(model.parameters()))
    for x, y in list(zip(inputs.split(SIZE), targets.split(SIZE), strict=True))[rank::COUNT]:
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    if rank == 0:
        torch.save(net.state_dict(), path)
    dist.destroy_process_group()


@pytest.mark.slow
def test_data_parallelism_equals_distributed_data_parallel(tmp_path):
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    forked(theirs, port, tmp_path / "theirs.pt", count=COUNT)
    net, inputs, targets = data_and_model()
    case = MethodCase(METHODS["sequential"].method, RoundRobin(DataParallel(), Replicas((COUNT,))))
    ours = pipeline(copy.deepcopy(net), [], case, rate=lambda _k: 0.1).train(batches(inputs, targets, SIZE))
    assert difference(ours.stages[0].state(), torch.load(tmp_path / "theirs.pt")) < 1e-6
