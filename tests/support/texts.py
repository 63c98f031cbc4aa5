"""Small texts for tests."""

import random

_WORDS = ("the", "a", "cat", "dog", "sees", "likes", "one", "other", "and", "sleeps", "today", "naïve")


def prose(lines=200, seed=0):
    """Lines of a few words each, an empty one now and then."""
    draw = random.Random(seed)
    made = (" ".join(draw.choices(_WORDS, k=draw.randint(3, 9))).capitalize() + "." for _ in range(lines))
    return "".join(line + ("\n\n" if number % 10 == 9 else "\n") for number, line in enumerate(made))
