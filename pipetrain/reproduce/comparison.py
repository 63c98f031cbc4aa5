"""A printed number beside ours, and whether they are the same at the digits that are printed."""

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

Value = Fraction | float | str


class Agreement(Enum):
    """How a printed number and ours go together."""

    EXACT = "agrees"
    EXPLAINED = "differs, explained"
    OPEN = "differs, open"
    UNDETERMINED = "cannot be computed"


@dataclass(frozen=True)
class Comparison:
    """One printed number beside ours.

    Attributes:
        what: what the number is.
        source: where the paper prints it.
        printed: it, with the paper's digits.
        ours: what we find; a text where the paper prints one, None where it gives too little to compute it from.
        relation: `=`, `<=` or `>=`, as the paper puts it: ours to the printed number.
        note: why they differ, or what else is to be said.
        explained: whether the note says why they differ; else the question is open.
    """

    what: str
    source: str
    printed: str
    ours: Value | None
    relation: str = "="
    note: str = ""
    explained: bool = True

    @property
    def agreement(self) -> Agreement:
        """Whether they agree, and where they do not whether it is known why."""
        if self.ours is None:
            return Agreement.UNDETERMINED
        if agrees(self.printed, self.ours, self.relation):
            return Agreement.EXACT
        return Agreement.EXPLAINED if self.note and self.explained else Agreement.OPEN


def agrees(printed: str, ours: Value, relation: str = "=") -> bool:
    """Whether rounding our number can give the printed one, or it keeps the printed bound."""
    if isinstance(ours, str):
        return printed == ours
    text = printed.lstrip("<>")
    half = Fraction(1, 2 * 10 ** _decimals(text))
    gap = Fraction(ours) - Fraction(text)
    return {"=": abs(gap) <= half, "<=": gap <= 0, ">=": gap >= 0}[relation]


def shown(value: Value | None, printed: str) -> str:
    """Our number with one digit more than is printed; whole ones without any, nothing where there is none."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if Fraction(value).denominator == 1:
        return str(int(value))
    return f"{float(value):.{_decimals(printed.lstrip('<>')) + 1}f}"


def _decimals(text: str) -> int:
    """Digits behind the point; of a number such as 5e-4, too."""
    mantissa, _, exponent = text.partition("e")
    return max(0, len(mantissa.partition(".")[2]) - int(exponent or 0))
