"""Kubernetes quantities, such as "500m" and "64Gi", as exact numbers.

The forms are those of k8s.io/apimachinery/pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

# no more digits than a number of this world needs: 1e999999 would take for ever
_FORM = re.compile(r"([+-]?(?:\d{1,18}(?:\.\d{0,18})?|\.\d{1,18}))([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,2})?")
_SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": 10**3, "M": 10**6}
_SUFFIXES |= {"G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_SUFFIXES |= {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)}


def parse(quantity: str | int) -> Fraction:
    """The exact value of a quantity.

    Raises:
        ValueError: it is none; the text says so in one sentence.

    Example:
        >>> parse("1500m"), parse("2Ki"), parse(3)
        (Fraction(3, 2), Fraction(2048, 1), Fraction(3, 1))
    """
    if isinstance(quantity, int) and not isinstance(quantity, bool):
        return Fraction(quantity)
    match = _FORM.fullmatch(quantity) if isinstance(quantity, str) else None
    if not match:
        raise ValueError(f"{quantity!r:.60} is no quantity, such as 2, 500m or 16Gi")
    number, suffix = match.groups()
    if suffix and suffix[0] in "eE" and len(suffix) > 1 and suffix != "Ei":
        return Fraction(number) * Fraction(10) ** int(suffix[1:])
    return Fraction(number) * (_SUFFIXES[suffix] if suffix else 1)


def is_one(quantity: str | int) -> bool:
    """Whether `parse` takes it."""
    try:
        parse(quantity)
    except ValueError:
        return False
    return True


def whole(quantity: str | int) -> int:
    """A quantity as a whole number, rounded up, as `Quantity.Value()` does it in Go.

    Raises:
        ValueError: it is no quantity.

    Example:
        >>> whole("500m"), whole("1Gi")
        (1, 1073741824)
    """
    return math.ceil(parse(quantity))
