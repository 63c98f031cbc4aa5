"""What the allocator does with freed memory, in processes of their own: its settings are for good."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from pipetrain.launch.memory import keep_freed_memory
keep_freed_memory()
def step():
    held = [torch.ones(2**20) for _ in range(8)], torch.ones(2**24)
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(**settings):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env={**clean, **settings}, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_memory_freed_by_a_step_is_reused_by_the_next_without_page_faults():
    assert page_faults() < 200
    # 20 times 8 arrays of 4 MB and one of 64 MB: the user's own setting is left as it is
    assert page_faults(MALLOC_TRIM_THRESHOLD_="0", MALLOC_MMAP_THRESHOLD_="131072") > 100_000
