"""Beam search over a model whose probabilities stand in a table."""

import itertools
import math

import pytest
import torch

from pipetrain.data.decoding import DecodingOptions
from pipetrain.zoo.decoding import SpecialTokens
from pipetrain.zoo.decoding.beam import beam_search

MARKS = SpecialTokens(beginning=1, end=2, padding=0)
VOCABULARY = 6


class Table:
    """The next token depends on the last two; each source is the row of a table of its own."""

    def __init__(self, seed=0):
        self.logits = torch.randn(3, VOCABULARY, VOCABULARY, VOCABULARY, generator=torch.manual_seed(seed)) * 2

    def begin(self, source):
        return source[:, 0], torch.zeros(len(source), dtype=torch.int64)

    def step(self, tokens, state):
        source, before = state
        return self.logits[source, before, tokens], (source, tokens)


def log_probability(model, source, tokens):
    """Of the tokens after the mark of the beginning, computed one by one."""
    before, last, total = 0, MARKS.beginning, 0.0
    for token in tokens:
        total += model.logits[source, before, last].log_softmax(0)[token].item()
        before, last = last, token
    return total


def most_probable(model, source, longest, divisor):
    """The best of all texts there are."""
    texts = [text for n in range(longest + 1) for text in itertools.product(range(3, VOCABULARY), repeat=n)]
    return max(texts, key=lambda text: log_probability(model, source, [*text, MARKS.end]) / divisor(len(text) + 1))


def searched(model, sources, longest=4, **options):
    source = torch.tensor(sources)[:, None]
    longest = [longest] * len(sources) if isinstance(longest, int) else longest
    return beam_search(model, (source,), MARKS, longest, DecodingOptions(**options))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("penalty", "form"), [(0.0, "fairseq"), (1.0, "fairseq"), (0.6, "gnmt")])
def test_wide_beam_finds_the_most_probable_text_of_each_sample(seed, penalty, form):
    model = Table(seed)
    options = {"beam_width": 200, "length_penalty": penalty, "length_penalty_form": form}
    found = searched(model, [0, 1, 2], **options)
    divisor = DecodingOptions(**options).divisor
    assert found == [list(most_probable(model, source, 4, divisor)) for source in range(3)]


def test_width_of_one_takes_the_most_probable_token_each_time():
    model = Table(5)
    for source in range(3):
        tokens, before, last = [], 0, MARKS.beginning
        while len(tokens) < 4:
            scores = model.logits[source, before, last].clone()
            scores[[MARKS.padding, MARKS.beginning]] = -math.inf
            before, last = last, int(scores.argmax())
            if last == MARKS.end:
                break
            tokens.append(last)
        assert searched(model, [source], beam_width=1) == [tokens]


def test_text_of_a_sample_does_not_depend_on_its_neighbors():
    model = Table(7)
    together = searched(model, [0, 1, 2, 0], beam_width=3)
    assert together == [searched(model, [source], beam_width=3)[0] for source in (0, 1, 2, 0)]


def test_endless_text_is_cut_at_its_sample_limit():
    model = Table()
    model.logits[..., MARKS.end] = -50.0
    assert [len(text) for text in searched(model, [0, 1, 2], longest=[7, 0, 3], beam_width=2)] == [7, 0, 3]


def test_model_whose_logits_are_no_numbers_writes_nothing():
    model = Table()
    model.logits[:] = math.nan
    assert searched(model, [0, 1]) == [[], []]


def test_longer_texts_gain_by_a_larger_penalty():
    model = Table(3)
    lengths = [
        sum(map(len, searched(model, [0, 1, 2], longest=6, beam_width=50, length_penalty=penalty)))
        for penalty in (0.0, 1.0, 3.0)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_length_penalties_are_those_of_the_papers():
    assert DecodingOptions(length_penalty=0.5).divisor(9) == 3.0
    assert DecodingOptions(length_penalty=2.0, length_penalty_form="gnmt").divisor(7) == 4.0
