"""The peak of a process's memory."""

import platform

import pytest
import torch

from pipetrain.stage.peak_memory import forget_peak_memory, peak_memory_bytes

CPU = torch.device("cpu")


@pytest.mark.skipif(platform.system() != "Linux", reason="only Linux can forget a peak")
def test_peak_begins_anew():
    size = 256 * 2**20
    held = torch.ones(size, dtype=torch.uint8)
    before = peak_memory_bytes(CPU)
    assert before > size
    del held
    forget_peak_memory(CPU)
    after = peak_memory_bytes(CPU)
    assert after < before - size // 2
    torch.ones(size, dtype=torch.uint8)
    assert peak_memory_bytes(CPU) > after + size // 2
