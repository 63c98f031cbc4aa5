"""The hashes of a summary, and its file."""

import hashlib
import struct

import pytest
import torch
from support.refusals import assert_refused
from support.stored_runs import STAGES

from pipetrain.runner.tracking import summary
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.summary import totals_of_stages


def test_hash_of_weights_is_over_sorted_names_and_raw_bytes():
    state = [("a", torch.tensor([[1, 2], [3, 4]])), ("b", torch.tensor([1.5, -2.0]))]
    expected = hashlib.sha256(b"a" + struct.pack("<4q", 1, 2, 3, 4) + b"b" + struct.pack("<2f", 1.5, -2.0)).hexdigest()
    assert summary.weights_sha256(state) == expected


def test_hash_of_weights_depends_on_values_and_not_on_memory():
    matrix = torch.arange(6.0).reshape(2, 3)
    reference = summary.weights_sha256([("w", matrix)])
    assert summary.weights_sha256([("w", matrix.t().contiguous().t())]) == reference
    assert summary.weights_sha256([("w", matrix.clone().requires_grad_())]) == reference
    assert summary.weights_sha256([("w", matrix.nextafter(torch.tensor(9.0)))]) != reference


def test_hash_of_a_conjugate_is_that_of_its_values():
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert summary.raw_bytes(tensor.conj()) == struct.pack("<4f", 1, -2, 3, 4)
    assert summary.raw_bytes(tensor.conj().imag) == struct.pack("<2f", -2, 4)


def test_hash_of_losses_is_over_float32():
    losses = [2.302585, 0.1]
    assert summary.loss_sha256(losses) == hashlib.sha256(struct.pack("<2f", *losses)).hexdigest()
    assert summary.loss_sha256([]) == hashlib.sha256().hexdigest()


def test_summary_reads_back_as_written_or_none(tmp_path):
    run = RunDirectory(tmp_path)
    assert summary.read(run) is None
    summary.write(run, {"status": "completed", "target": None})
    assert summary.read(run) == {"status": "completed", "target": None}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(
    "content", [b'{"status": "comp', b"{}", b"[1]", b'{"status": "done"}', b"\xff", b'{"status": "failed", "final": 1}']
)
def test_damaged_summary_is_one_line_that_names_the_file(tmp_path, content):
    run = RunDirectory(tmp_path)
    run.summary.write_bytes(content)
    assert_refused(f"{run.summary}: damaged: ", summary.read, run)


def test_shares_average_memory_parts_add_and_peak_is_maximum():
    assert totals_of_stages(STAGES) == {
        "idle_share": 0.375, "weight_bytes": 1200, "activation_bytes": 40, "memory_bytes": 7000, "stage_bytes": 830,
        "copies": 1.5,
    }  # fmt: skip
    assert totals_of_stages([{"layers": 2, "parameters": 3}, {"idle_share": None}]) == {}
