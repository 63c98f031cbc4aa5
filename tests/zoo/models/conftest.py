"""What the tests of models compute with."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """On a busy machine threads that wait for each other take a hundred times as long as these small layers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
