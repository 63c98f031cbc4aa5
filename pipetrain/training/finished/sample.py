"""`pipetrain sample RUN`: continues a text with a language model, a token at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from pipetrain.errors import ConfigError, check_whole
from pipetrain.models.chain import LayerChain
from pipetrain.number_range import NOT_NEGATIVE
from pipetrain.tracking.stored_settings import Override, check_read, stored_settings
from pipetrain.training.builders.data import build_dataset, evaluation_loader
from pipetrain.training.checkpoint import contents
from pipetrain.training.checkpoint.store import Selection
from pipetrain.training.whole_model import check_data_of_run, load_whole_model

_CALLED = ("dataset", "model")
_READ = ("device", "threads")


@dataclass(frozen=True)
class Sampling:
    """Options for choosing the next token.

    Attributes:
        length: tokens to add.
        temperature: scores are divided by it; 0: always the most likely token.
        top_k: only the k most likely tokens can be chosen; None: all.
        seed: of the draws.

    Raises:
        ConfigError: a number is out of its range.
    """

    length: int = 200
    temperature: float = 0.8
    top_k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("--length", self.length, least=1)
        NOT_NEGATIVE.check("--temperature", self.temperature)
        if self.top_k is not None:
            check_whole("--top-k", self.top_k, least=1)

    def choose(self, scores: Tensor, generator: torch.Generator) -> int:
        """A token, by the scores (tokens,) of all."""
        if not self.temperature:
            return int(scores.argmax())
        scores = scores.float() / self.temperature
        if self.top_k is not None and self.top_k < len(scores):
            scores[scores < scores.topk(self.top_k).values[-1]] = -torch.inf
        return int(torch.multinomial(scores.softmax(0), 1, generator=generator))


def sample(
    selection: Selection,
    prompt: str,
    sampling: Sampling,
    overrides: Sequence[Override] = (),
    *,
    trust: bool = False,
) -> tuple[str | None, Iterator[str]]:
    """Which weights are used, None without averages; and the prompt and its continuation, in pieces as generated.

    Args:
        selection: of the checkpoint.
        prompt: beginning of the text; if it is empty, that of a line of the training text.
        sampling: how tokens are chosen.
        overrides: changes of the run's settings.
        trust: True to call code that is not pipetrain's own.

    Raises:
        ConfigError: there is no such checkpoint, it is of no language model, a change is wrong, or the prompt cannot be
            written in tokens.
    """
    check_read(overrides, _CALLED, _READ, "sampling")
    settings = stored_settings(selection.run, _CALLED, overrides, trust=trust)
    folder = selection.checkpoint()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    dataset = build_dataset(settings.dataset, settings.seed)
    vocabulary = getattr(dataset, "vocabulary", None)
    if vocabulary is None:
        reason = f"{selection.run} was trained on {settings.dataset.target.path}"
        if hasattr(dataset, "vocabulary"):
            raise ConfigError(
                f"{reason}, whose token ids cannot be turned into text; run it with dataset.tokenizer=FILE, a "
                "tokenizer.json"
            )
        raise ConfigError(f"{reason}, which is no text; sample takes runs of language models, such as model=gpt")
    check_data_of_run(folder, evaluation_loader(settings, dataset), overrides)
    model = load_whole_model(settings, dataset, folder, raw=selection.raw)
    begun = [int(token) for token in (vocabulary.encode(prompt) if prompt else vocabulary.start)]
    if not begun:
        raise ConfigError(f"--prompt {prompt!r}: holds no token")
    generated = generate(model, begun, sampling, dataset.max_length, vocabulary.size)
    generated = chain([next(generated)], generated)  # checks the model before a piece is shown
    return contents.averages_note(folder, raw=selection.raw), _pieces(vocabulary, begun, generated)


def _pieces(vocabulary: Any, begun: list[int], tokens: Iterator[int]) -> Iterator[str]:
    """Text by and by; a token may be a part of a character, and is kept until the rest of it has come."""
    ids, shown = list(begun), ""
    while True:
        text = vocabulary.decode(ids)
        if not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text
        token = next(tokens, None)
        if token is None:
            yield text[len(shown) :]
            return
        ids.append(token)


@torch.no_grad()
def generate(model: LayerChain, begun: list[int], sampling: Sampling, positions: int, tokens: int) -> Iterator[int]:
    """The tokens that the model adds, each from the last ones before it.

    Args:
        model: token ids (1, positions) -> scores (1, positions, tokens or more).
        begun: the tokens to continue.
        sampling: how tokens are chosen.
        positions: number of tokens that the model takes.
        tokens: number of tokens that have a meaning.

    Raises:
        ConfigError: the model gives other scores.
    """
    device = next(model.module.parameters()).device
    generator = torch.Generator().manual_seed(sampling.seed)
    ids = list(begun)
    for _ in range(sampling.length):
        read = ids[-positions:]
        scores = model(torch.tensor([read], device=device))
        _check_scores(scores, len(read), tokens)
        ids.append(sampling.choose(scores[0, -1, :tokens].cpu(), generator))
        yield ids[-1]


def _check_scores(scores: Any, positions: int, tokens: int) -> None:
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else None
    if shape is None or len(shape) != 3 or shape[:2] != (1, positions) or shape[2] < tokens:
        raise ConfigError(
            f"model: for {positions} tokens it returns {shape or type(scores).__name__}, not scores of shape "
            f"(1, {positions}, at least {tokens}); sample takes runs of language models, such as model=gpt"
        )
