"""Videos as the features of their frames, each with captions in words."""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.data.interface import Split
from pipetrain.engine.tensors import Tensors
from pipetrain.zoo.data.vocabulary import BEGINNING, END, PADDING, SentenceVocabulary, pad
from pipetrain.zoo.decoding import Generation, SpecialTokens

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


def caption_words(caption: str) -> str:
    """The words of a caption in lower case, without punctuation."""
    return " ".join(_WORD.findall(caption.lower()))


class Videos(Protocol):
    """Videos by number."""

    def __len__(self) -> int:
        """Number of videos."""

    def captions(self, index: int) -> Sequence[str]:
        """The captions of a video."""

    def frames(self, index: int) -> Tensor:
        """The features of a video's frames (frames, features), float32; all videos have the same number of frames."""


class CaptionedVideos:
    """One split: a sample ((frames, words before), words) for each caption of each video, cut to `longest` words."""

    def __init__(self, videos: Videos, words: SentenceVocabulary, longest: int) -> None:
        self.videos = videos
        self.reads_files = Split(videos).reads_files
        numbers = [index for index in range(len(videos)) for _ in videos.captions(index)]
        captions = words.encode_lines(_captions(videos))
        self._samples = [(index, ids[:longest]) for index, ids in zip(numbers, captions, strict=True)]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensors, Tensor]:
        video, ids = self._samples[index]
        return (self.videos.frames(video), torch.tensor([BEGINNING, *ids])), self.target(index)

    def target(self, index: int) -> Tensor:
        """The words of a sample and the mark of their end, int64 (positions,)."""
        return torch.tensor([*self._samples[index][1], END])

    @staticmethod
    def collate(samples: Sequence[tuple[Tensors, Tensor]]) -> tuple[Tensors, Tensors]:
        """A minibatch: frames (n, frames, features), words before (n, positions); words (n, positions)."""
        frames = torch.stack([frames for (frames, _), _ in samples])
        before = pad(before for (_, before), _ in samples)
        return (frames, before), (pad(target for _, target in samples),)


def _captions(videos: Videos) -> Iterator[str]:
    return (caption_words(caption) for index in range(len(videos)) for caption in videos.captions(index))


class _Sources(Sequence[Tensors]):
    """Frames of each video, read on access."""

    def __init__(self, videos: Videos) -> None:
        self._videos = videos

    @override
    def __len__(self) -> int:
        return len(self._videos)

    @override
    def __getitem__(self, index: int) -> Tensors:  # type: ignore[override]
        return (self._videos.frames(index),)


class CaptionDataset:
    """Two splits of captioned videos; the vocabulary comes from the training captions.

    Args:
        longest: words that a caption is cut to.
        least: occurrences of a word in training captions at least; a rarer one is unknown.

    Attributes:
        features: numbers that describe a frame.
    """

    def __init__(self, train: Videos, evaluation: Videos, *, longest: int, least: int = 1) -> None:
        self.words = SentenceVocabulary.learned(lambda: _captions(train), "words", None, least)
        self.train, self.eval = (CaptionedVideos(videos, self.words, longest) for videos in (train, evaluation))
        self.longest = longest
        self.features = train.frames(0).shape[1]
        self.padding = PADDING
        self.vocabulary_size = self.words.size
        self.vocabulary_sha256 = self.words.sha256

    @cached_property
    def decoding(self) -> Generation:
        """A caption of each video of the evaluation set, compared with its own by METEOR."""
        videos = self.eval.videos
        return Generation(
            _Sources(videos),
            [[caption_words(caption) for caption in videos.captions(index)] for index in range(len(videos))],
            self.words.decode,
            SpecialTokens(BEGINNING, END, PADDING),
            self.longest,
            metrics=("meteor",),
        )
