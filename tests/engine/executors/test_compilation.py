"""The sizes of microbatches that the layers of a run are compiled for."""

from types import SimpleNamespace

import pytest

from pipetrain.data.loader import Loader
from pipetrain.engine.executors.compilation import evaluation_sizes, training_sizes


class Texts:
    """Samples that their data set pads."""

    def __len__(self):
        return 4

    def collate(self, pairs):
        raise NotImplementedError


@pytest.mark.parametrize(("counts", "expected"), [([1], [2, 4]), ([2], [1, 2]), ([3, 1], [1, 2, 4])])
def test_sizes_are_those_of_all_microbatches(counts, expected):
    phases = [SimpleNamespace(rules=SimpleNamespace(num_microbatches=count)) for count in counts]
    assert training_sizes(Loader(range(10), batch_size=4, microbatches=max(counts)), phases) == expected
    assert evaluation_sizes(Loader(range(9), batch_size=4)) == [1, 4]
    padded = Loader(Texts(), batch_size=4)
    assert training_sizes(padded, phases) == evaluation_sizes(padded) == []
