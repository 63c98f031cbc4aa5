import torch

from pipetrain.data.sentence_pairs import SentencePairs
from pipetrain.data.sentences import Sentences, as_array
from pipetrain.data.vocabulary import BEGINNING, END, PADDING

SOURCES, TARGETS = [[7, 8, 9], [], [6], [5, 5]], [[11], [12, 13], [14, 15, 16, 17], [18]]


def pairs(**options):
    return SentencePairs(Sentences(as_array(SOURCES)), Sentences(as_array(TARGETS)), **options)


def test_sample_has_an_end_behind_the_source_and_the_target_shifted_by_a_beginning():
    (source, prefix), target = pairs()[2]
    assert source.tolist() == [6, END]
    assert prefix.tolist() == [BEGINNING, 14, 15, 16, 17]
    assert target.tolist() == [14, 15, 16, 17, END]
    assert {source.dtype, prefix.dtype, target.dtype} == {torch.int64}


def test_split_has_the_pairs_that_are_kept_in_their_order():
    split = pairs(kept=[3, 0])
    assert len(split) == 2
    assert [split.source(i).tolist() for i in range(2)] == [[5, 5, END], [7, 8, 9, END]]
    assert split.batches(1, 2) == [[0], [1]]


def test_minibatch_is_padded_to_its_longest_sentence_on_each_side():
    split = pairs()
    (sources, prefixes), (targets,) = split.collate([split[0], split[2]])
    assert sources.tolist() == [[7, 8, 9, END], [6, END, PADDING, PADDING]]
    assert prefixes.tolist() == [[BEGINNING, 11, *[PADDING] * 3], [BEGINNING, 14, 15, 16, 17]]
    assert targets.tolist() == [[11, END, *[PADDING] * 3], [14, 15, 16, 17, END]]


def test_minibatches_count_the_marks_and_the_longer_side():
    assert pairs(batch_tokens=8).batches(64, 4) == [[1, 3], [0], [2]]
    assert pairs(batch_tokens=8).batches(64, 2) == [[1, 0]]
