"""What all tests on CUDA devices have in common."""

import os

import pytest


@pytest.fixture(autouse=True)
def _on_cuda(monkeypatch):
    monkeypatch.setenv("DEVICE", "cuda")  # of `worker_pool.job`


@pytest.fixture(autouse=True, scope="session")
def _cublas_may_be_deterministic():
    """This process simulates one run after the other, and cuBLAS reads its environment only before the first."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
