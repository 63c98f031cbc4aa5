"""Synthetic translation: dates and quantities, English to German, as Babel and num2words write them."""

import random
from datetime import date, timedelta
from functools import cache

from pipetrain.data.libraries.imports import require
from pipetrain.engine.errors import check_whole
from pipetrain.engine.seeding import key
from pipetrain.zoo.data.translation.dataset import TranslationDataset

_TRAIN, _EVAL = range(2)
_FIRST, _DAYS = date(1900, 1, 1), 73_000  # two centuries
_NUMBERS = range(2, 1000)  # "one" and its unit agree in ways that German has many of
_UNITS = (
    "length-kilometer",
    "length-meter",
    "mass-kilogram",
    "volume-liter",
    "temperature-celsius",
    "duration-hour",
    "duration-day",
    "duration-week",
)


def synthetic_en_de(
    train: int = 8000,
    eval: int = 400,
    vocabulary_size: int = 600,
    batch_tokens: int | None = None,
    seed: int = 0,
    *,
    joint: bool = False,
) -> TranslationDataset:
    """Pairs such as "Thursday, March 5, 1987: forty-two kilometers" and its German, made from `seed` alone.

    Half of the dates are in words. Each language has `vocabulary_size` subwords, or both have them together if `joint`.
    The seed is the data set's own, so that runs of different seeds see the same pairs.

    Raises:
        ConfigError: a count is below 1, the vocabulary too small, or a package is not installed.
    """
    require("dataset=synthetic_en_de", ("babel", "num2words"), "translation")
    for name, count in {"train": train, "eval": eval}.items():
        check_whole(f"dataset.{name}", count, least=1)
    pairs, held_out = (
        [_pair(random.Random(key(seed, split, index))) for index in range(count)]
        for split, count in ((_TRAIN, train), (_EVAL, eval))
    )
    return TranslationDataset(pairs, held_out, vocabulary_size=vocabulary_size, joint=joint, batch_tokens=batch_tokens)


def _pair(draw: random.Random) -> tuple[str, str]:
    day, number, unit = _FIRST + timedelta(draw.randrange(_DAYS)), draw.choice(_NUMBERS), draw.choice(_UNITS)
    english, german = draw.choice((_in_figures, _in_words))(day)
    return (
        f"{english}: {_words(number, 'en')} {_unit(unit, 'en')}",
        f"{german}: {_words(number, 'de')} {_unit(unit, 'de')}",
    )


def _in_figures(day: date) -> tuple[str, str]:
    """The full formats of Unicode's locale data."""
    english = f"{_weekday(day, 'en')}, {_month(day, 'en')} {day.day}, {day.year}"
    return english, f"{_weekday(day, 'de')}, {day.day}. {_month(day, 'de')} {day.year}"


def _in_words(day: date) -> tuple[str, str]:
    ordinals = [_words(day.day, language, "ordinal") for language in ("en", "de")]
    years = [_words(day.year, language, "year") for language in ("en", "de")]
    english = f"on {_weekday(day, 'en')}, the {ordinals[0]} of {_month(day, 'en')} {years[0]}"
    return english, f"am {_weekday(day, 'de')}, dem {ordinals[1]}n {_month(day, 'de')} {years[1]}"


@cache
def _words(number: int, language: str, form: str = "cardinal") -> str:
    from num2words import num2words

    return str(num2words(number, lang=language, to=form))


@cache
def _unit(unit: str, language: str) -> str:
    """Plural of a unit's name in a language."""
    from babel.units import format_unit

    return format_unit(2, unit, "long", locale=language).removeprefix("2 ")


@cache
def _names(kind: str, language: str) -> dict[int, str]:
    from babel.dates import get_day_names, get_month_names

    return dict((get_day_names if kind == "days" else get_month_names)("wide", locale=language))


def _weekday(day: date, language: str) -> str:
    return _names("days", language)[day.weekday()]


def _month(day: date, language: str) -> str:
    return _names("months", language)[day.month]
