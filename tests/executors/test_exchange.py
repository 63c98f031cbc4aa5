"""What processes tell each other arrives in all of them, and nothing that arrives is code."""

import json
import math
import pickle
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import pipetrain
from pipetrain.executors import exchange

WORDS = [{"loss": 0.1 + 0.2, "steps": 3}, [None, True, "β"], math.inf]


def tell(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
    heard = [exchange.from_all(WORDS[rank]), *(exchange.from_one(WORDS[rank], source) for source in range(3))]
    (folder / str(rank)).write_text(json.dumps(heard))


def test_values_of_all_and_of_one_arrive_in_every_process_as_they_were_given(tmp_path):
    mp.start_processes(tell, (tmp_path,), nprocs=3, start_method="fork")
    for rank in range(3):
        assert json.loads((tmp_path / str(rank)).read_text()) == [WORDS, *WORDS]


class Intruder:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_received_pickle_is_refused_and_not_run(tmp_path, monkeypatch):
    sent = torch.frombuffer(bytearray(pickle.dumps(Intruder(tmp_path / "touched"))), dtype=torch.uint8)
    monkeypatch.setattr(exchange, "_encoded", lambda _value: sent)
    monkeypatch.setattr(dist, "broadcast", lambda _tensor, _source: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    with pytest.raises(ValueError):
        exchange.from_one("anything", source=0)
    assert not (tmp_path / "touched").exists()


def test_no_collective_of_pickled_objects_is_used():
    pickling = re.compile(r"\b(broadcast|send|recv|scatter)_object_list|\b(all_)?gather_object\b")
    modules = Path(pipetrain.__file__).parent.rglob("*.py")
    assert [path for path in modules if pickling.search(path.read_text())] == []
