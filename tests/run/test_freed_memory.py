"""What the allocator does with freed memory, in processes of their own: its settings are for good."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from pipetrain.run.freed_memory import freed_memory_kept, keep_freed_memory
def step():
    held = [torch.ones(2**20) for _ in range(8)], torch.ones(2**24)
def faults():
    for _ in range(3):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
with freed_memory_kept():
    print(faults())
print(faults())
keep_freed_memory()
print(faults())
"""


def page_faults(**settings):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env={**clean, **settings}, capture_output=True, text=True, check=True
    )
    return [int(line) for line in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_memory_freed_by_a_step_is_reused_by_the_next_without_page_faults():
    while_kept, afterwards, for_good = page_faults()
    assert max(while_kept, for_good) < 200
    assert afterwards > 25_000  # 5 times 8 arrays of 4 MB and one of 64 MB
    assert min(page_faults(MALLOC_TRIM_THRESHOLD_="0", MALLOC_MMAP_THRESHOLD_="131072")) > 25_000  # the user's own
