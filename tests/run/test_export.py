"""The weights of a run as a file."""

import pytest
import torch
from support import small_model
from support.worker_pool import job, simulated

from pipetrain.errors import ConfigError
from pipetrain.run import checkpoint
from pipetrain.run.export import export


@pytest.fixture
def run(tmp_path):
    made = job(tmp_path / "run", "pipedream", 2)
    simulated(made)
    return made.run.path


def test_exported_weights_load_into_the_users_own_module(run, tmp_path, capsys):
    export(run, None, tmp_path / "weights.pt")
    state = torch.load(tmp_path / "weights.pt")
    small_model.build(1, 4).module.load_state_dict(state)
    expected = checkpoint.model_state(checkpoint.find(str(run)))
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    assert f"{len(state)} tensors" in capsys.readouterr().out


def test_export_into_a_folder_that_is_missing_is_refused(run, tmp_path):
    with pytest.raises(ConfigError, match=f"-o {tmp_path}/no/w.pt: there is no folder {tmp_path}/no"):
        export(run, None, tmp_path / "no" / "w.pt")
