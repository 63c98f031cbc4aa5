"""Videos with captions as a data set."""

import torch

from pipetrain.data.captions import CaptionDataset
from pipetrain.data.word_list import MARKS


class Videos:
    def __init__(self, *captions):
        self._captions = captions

    def __len__(self):
        return len(self._captions)

    def captions(self, index):
        return self._captions[index]

    def frames(self, index):
        return torch.full((2, 3), float(index))


DATASET = CaptionDataset.of(
    Videos(["A dog runs.", "a dog"], ["a cat"]), Videos(["a dog sleeps now", "the dog"], ["a cat"]), longest=3
)


def test_each_caption_is_a_sample_with_the_words_before_and_after():
    assert (len(DATASET.train), len(DATASET.eval)) == (3, 3)
    (frames, before), after = DATASET.train[0]
    assert frames.shape == (2, 3)
    assert before.tolist() == [MARKS.beginning, *DATASET.words.ids("a dog runs")]
    assert after.tolist() == [*DATASET.words.ids("a dog runs"), MARKS.end]


def test_minibatch_is_padded_to_its_longest_caption():
    (frames, before), (after,) = DATASET.train.collate([DATASET.train[0], DATASET.train[2]])
    assert (frames.shape, before.shape, after.shape) == ((2, 2, 3), (2, 4), (2, 4))
    assert before[1].tolist() == [MARKS.beginning, *DATASET.words.ids("a cat"), MARKS.padding]
    assert after[1].tolist() == [*DATASET.words.ids("a cat"), MARKS.end, MARKS.padding]


def test_long_captions_are_cut_and_words_of_the_evaluation_are_not_learned():
    (_, before), after = DATASET.eval[0]
    assert len(before) == len(after) == 4
    assert DATASET.words.text(before.tolist()) == "a dog <unk>"
    assert DATASET.vocabulary_size == 8  # a, dog, cat, runs and four marks
    assert (DATASET.features, DATASET.padding) == (3, 0)


def test_decoding_has_one_sample_for_each_video_with_all_its_captions():
    decoding = DATASET.decoding
    assert len(decoding.sources) == 2
    assert decoding.references == [["a dog sleeps now", "the dog"], ["a cat"]]
    assert decoding.sources[1][0].tolist() == [[1.0] * 3] * 2
    assert decoding.metrics == ("meteor",)
