"""Which device each process of a run computes on."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from pipetrain.runner.training.components.machine import device_at


@pytest.mark.parametrize(("local_rank", "index"), [(0, 0), (1, 1), (2, 0)])
def test_processes_share_devices_round_robin(monkeypatch, local_rank, index):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_at("cuda", local_rank) == torch.device("cuda", index)


def test_process_on_the_cpu_needs_no_index():
    assert device_at("cpu", 3) == torch.device("cpu")


MEMORY = """
import os, resource, torch
from pipetrain.runner.training.components.machine import freed_memory_kept, keep_freed_memory
def step():
    held = [torch.ones(2**20) for _ in range(8)], torch.ones(2**24)  # 96 MB
def faults():
    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
with freed_memory_kept():
    print(faults())
    kept = resident()
print(kept - resident())
keep_freed_memory()
print(faults())
"""


def page_faults_and_memory_given_back(**settings):
    """Page faults in the context, bytes that its end gives back, page faults once memory is kept for good."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], env={**clean, **settings}, capture_output=True, text=True, check=True
    )
    return [int(line) for line in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_memory_freed_by_a_step_is_reused_without_page_faults():
    in_context, _, for_good = page_faults_and_memory_given_back()
    assert max(in_context, for_good) < 200


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_memory_kept_for_a_while_goes_back_to_the_system():
    _, given_back, _ = page_faults_and_memory_given_back()
    assert given_back > 60 * 2**20


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_thresholds_of_the_user_are_left_alone():
    own = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "131072"}
    in_context, _, for_good = page_faults_and_memory_given_back(**own)
    assert min(in_context, for_good) > 25_000  # 5 times 8 arrays of 4 MB and one of 64 MB
