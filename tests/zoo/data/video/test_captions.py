"""Videos with captions as a data set."""

import torch

from pipetrain.zoo.data.video.captions import CaptionDataset
from pipetrain.zoo.data.vocabulary import BEGINNING, END, PADDING, UNKNOWN


class Videos:
    def __init__(self, *captions):
        self._captions = captions

    def __len__(self):
        return len(self._captions)

    def captions(self, index):
        return self._captions[index]

    def frames(self, index):
        return torch.full((2, 3), float(index))


DATASET = CaptionDataset(
    Videos(["A dog runs.", "a dog"], ["a cat"]), Videos(["a dog sleeps now", "the dog"], ["a cat"]), longest=3
)


def ids(caption):
    return next(DATASET.words.encode_lines([caption]))


def test_each_caption_is_a_sample_with_shifted_words():
    assert (len(DATASET.train), len(DATASET.eval)) == (3, 3)
    (frames, before), after = DATASET.train[0]
    assert frames.shape == (2, 3)
    assert before.tolist() == [BEGINNING, *ids("a dog runs")]
    assert after.tolist() == [*ids("a dog runs"), END]


def test_minibatch_is_padded_to_its_longest_caption():
    (frames, before), (after,) = DATASET.train.collate([DATASET.train[0], DATASET.train[2]])
    assert (frames.shape, before.shape, after.shape) == ((2, 2, 3), (2, 4), (2, 4))
    assert before[1].tolist() == [BEGINNING, *ids("a cat"), PADDING]
    assert after[1].tolist() == [*ids("a cat"), END, PADDING]


def test_long_captions_are_cut_and_evaluation_words_not_learned():
    (_, before), after = DATASET.eval[0]
    assert len(before) == len(after) == 4
    assert DATASET.words.decode(before.tolist()) == "a dog <unk>"
    assert DATASET.vocabulary_size == 8  # a, dog, cat, runs and four marks
    assert (DATASET.features, DATASET.padding) == (3, 0)


def test_decoding_has_one_sample_per_video_with_all_captions():
    decoding = DATASET.decoding
    assert len(decoding.sources) == 2
    assert decoding.references == [["a dog sleeps now", "the dog"], ["a cat"]]
    assert decoding.sources[1][0].tolist() == [[1.0] * 3] * 2
    assert decoding.metrics == ("meteor",)


def test_words_are_lower_case_and_sorted_by_frequency():
    words = CaptionDataset(Videos(["A cat, a dog.", "a dog's dog"]), Videos(["a"]), longest=9).words
    assert next(words.encode_lines(["a dog cat dog's"])) == [4, 5, 6, 7]
    assert words.decode([1, 4, 5, 2, 0, 0]) == "a dog"


def test_rare_words_are_unknown():
    words = CaptionDataset(Videos(["a cat", "a dog"]), Videos(["a"]), longest=9, least=2).words
    assert next(words.encode_lines(["a cat"])) == [4, UNKNOWN]
    assert words.decode([4, UNKNOWN]) == "a <unk>"


def test_vocabularies_of_one_size_are_told_apart():
    one, other, again = (
        CaptionDataset(Videos([caption]), Videos(["a"]), longest=9).vocabulary_sha256
        for caption in ("a cat", "a dog", "A cat.")
    )
    assert one == again != other
