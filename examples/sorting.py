"""A transformers model with data and a loss of your own: a small Llama learns to sort digits.

    pip install transformers
    export PYTHONPATH=examples
    pipetrain run model=custom model._target_=sorting.build dataset=custom dataset._target_=sorting.Digits \
                  loss=custom loss._target_=sorting.Answers optimizer=adamw optimizer.lr=0.003 train.epochs=8
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

SYMBOLS = " 0123456789="
"""All symbols; the first is the padding."""
NO_ANSWER = -100


def encoded(text: str) -> Tensor:
    """Symbol ids of a text, int64 (length,)."""
    return torch.tensor([SYMBOLS.index(symbol) for symbol in text])


class Split:
    """Texts such as 3141=1134: ({"input_ids", "attention_mask"}, next symbols), all int64 (length,)."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 8, (samples,), generator=generator).tolist()
        self.digits = [torch.randint(10, (length,), generator=generator).tolist() for length in lengths]

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        digits = self.digits[index]
        question = encoded("".join(map(str, digits)) + "=")
        text = torch.cat((question, encoded("".join(map(str, sorted(digits))) + " ")))
        following = text[1:].clone()
        following[: len(question) - 1] = NO_ANSWER
        return {"input_ids": text[:-1], "attention_mask": torch.ones_like(text[:-1])}, following

    def collate(self, samples: Sequence[tuple[dict[str, Tensor], Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
        """A minibatch, padded to its longest text."""
        names = samples[0][0]
        inputs = {name: pad_sequence([each[name] for each, _ in samples], batch_first=True) for name in names}
        return inputs, pad_sequence([each for _, each in samples], batch_first=True, padding_value=NO_ANSWER)


class Digits:
    """The data object."""

    def __init__(self, samples: int = 4096) -> None:
        self.train = Split(samples, seed=0)
        self.eval = Split(512, seed=1)


def build(width: int = 64, depth: int = 4) -> nn.Module:
    """An unmodified transformers model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(SYMBOLS),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=depth,
        num_attention_heads=4,
        max_position_embeddings=32,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


class Answers(nn.Module):
    """Cross-entropy of the answers' symbols."""

    @override
    def forward(self, logits: Tensor, following: Tensor) -> Tensor:
        """Mean loss for logits (n, length, symbols) and symbols (n, length)."""
        return F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=NO_ANSWER)

    def count(self, following: Tensor) -> int:
        """Number of symbols in the mean, by which microbatches are weighted."""
        return int(following.ne(NO_ANSWER).sum())

    def metrics(self, logits: Tensor, following: Tensor) -> dict[str, Any]:
        """Numbers of hits by name; evaluations report percentages of the count."""
        return {"symbols": (logits.argmax(-1) == following).sum()}


def answer(model: nn.Module, question: str) -> str:
    """The answer that a trained model generates for a question such as 3141=."""
    text = question
    while not text.endswith(" ") and len(text) < 24:
        logits = model(input_ids=encoded(text)[None]).logits
        text += SYMBOLS[int(logits[0, -1].argmax())]
    return text.strip()
