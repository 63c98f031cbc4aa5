"""What processes tell each other arrives in all of them, and nothing that arrives is code."""

import json
import math
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import pipetrain
from pipetrain.engine.errors import LostStageError
from pipetrain.engine.executors.base import ManyProcesses
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.messages import control
from pipetrain.engine.executors.messages.transport import Transport

WORDS = [{"loss": 0.1 + 0.2, "steps": 3}, [None, True, "β"], math.inf]


def tell(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
    (folder / str(rank)).write_text(json.dumps(control.all_gather_json(WORDS[rank])))


def test_gathered_values_arrive_unchanged(tmp_path):
    mp.start_processes(tell, (tmp_path,), nprocs=3, start_method="fork")
    for rank in range(3):
        assert json.loads((tmp_path / str(rank)).read_text()) == WORDS


def test_broken_connection_is_reported_as_lost_stage(monkeypatch):
    def broken(*_):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:24839")

    for name in ("all_gather", "barrier"):
        monkeypatch.setattr(dist, name, broken)
    monkeypatch.setattr(dist, "get_world_size", lambda _group=None: 2)
    with pytest.raises(LostStageError):
        control.all_gather_json(1)
    with pytest.raises(LostStageError):
        ManyProcesses._drained(SimpleNamespace(hooks=RunHooks(), transport=Transport(torch.device("cpu"))))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), dist.DistBackendError("NCCL error")])
def test_error_with_a_name_of_its_own_is_no_lost_stage(error):
    with pytest.raises(type(error)), control.lost_stage_on_error(1):
        raise error


def test_death_of_a_reader_is_no_lost_stage():
    with pytest.raises(RuntimeError, match="worker"), control.lost_stage_on_error():
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")


def test_device_error_is_lost_stage_only_if_network_says_so():
    with pytest.raises(RuntimeError, match="CUBLAS"), control.lost_stage_on_error(1, direct=True):
        raise RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED")
    with pytest.raises(LostStageError, match="stage 1"), control.lost_stage_on_error(1, direct=True):
        raise dist.DistNetworkError("connection reset")
    with pytest.raises(LostStageError, match="stage 1"), control.lost_stage_on_error(1, direct=True):
        raise dist.DistBackendError("NCCL error: ..., ncclRemoteError: A call failed possibly due to a network error")
    with pytest.raises(dist.DistBackendError), control.lost_stage_on_error(1, direct=True):
        raise dist.DistBackendError("NCCL error: ..., ncclSystemError: /dev/shm is too small")


class Intruder:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_received_pickle_is_refused_and_not_run(tmp_path, monkeypatch):
    sent = torch.frombuffer(bytearray(pickle.dumps(Intruder(tmp_path / "touched"))), dtype=torch.uint8)

    def all_gather(received, own, _group):
        for each in received:
            each.copy_(torch.tensor([len(sent)]) if own.dtype is torch.int64 else sent)

    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(dist, "get_world_size", lambda _group: 1)
    with pytest.raises(ValueError):
        control.all_gather_json("anything")
    assert not (tmp_path / "touched").exists()


def test_no_collective_of_pickled_objects_is_used():
    pickling = re.compile(r"\b(broadcast|send|recv|scatter)_object_list|\b(all_)?gather_object\b")
    modules = Path(pipetrain.__file__).parent.rglob("*.py")
    assert [path for path in modules if pickling.search(path.read_text())] == []
