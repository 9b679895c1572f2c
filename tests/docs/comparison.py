"""Does a command print what a page shows?  Compared as it is, or by its shape; a line `...` is any lines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

__all__ = ["difference", "renewed"]

ANYTHING = "..."
# In this order: a bar, a number with what is glued to it or a unit behind it, spaces.
MASKS = (
    (re.compile(r"={2,}|-{2,}|#{2,}"), "="),
    (re.compile(r"(?<![\w.])[-+]?\d[\d.,]*(?:e[-+]?\d+)?(?:\s?(?:[KMGT]i?B|B|[num]?s|us|%|x)\b)?"), "0"),
    (re.compile(r"\s+"), " "),
)


def difference(
    printed: Sequence[str], expected: Sequence[str], shape: bool = False, prose: bool = False
) -> str:
    """Of what was printed from what was expected; "" when there is none."""
    have, want = _forms(_whole(printed, prose), shape), _forms(_whole(expected, prose), shape)
    if _aligned(have, want) is not None:
        return ""
    return "\n".join(difflib.unified_diff(want, have, "in the page", "printed", lineterm="", n=2))


def renewed(printed: Sequence[str], expected: Sequence[str], prose: bool = False) -> list[str] | None:
    """The expected lines as they are printed now; None where more than numbers has changed."""
    have, want = _whole(printed, prose), _whole(expected, prose)
    places = _aligned(_forms(have, True), _forms(want, True))
    if places is None:
        return None
    lines = [ANYTHING if place is None else have[place] for place in places]
    lines = [line.rstrip() for whole in lines for line in whole.split("\n")]
    return [*lines, *want[len(places) :]]


def _whole(lines: Sequence[str], prose: bool) -> list[str]:
    """The lines, of prose those that belong together as one."""
    whole: list[str] = []
    for line in lines:
        if prose and whole and line.startswith("    "):
            whole[-1] += f"\n{line}"
        else:
            whole.append(line)
    return whole


def _forms(lines: Sequence[str], shape: bool) -> list[str]:
    forms = [_form(" ".join(line.split()) if "\n" in line else line, shape) for line in lines]
    while forms and not forms[-1]:
        forms.pop()
    return forms


def _form(line: str, shape: bool) -> str:
    if not shape or line.strip() == ANYTHING:
        return line.rstrip()
    for pattern, mask in MASKS:
        line = pattern.sub(mask, line)
    return line.strip()


def _aligned(have: Sequence[str], want: Sequence[str], begin: int = 0) -> list[int | None] | None:
    """The place of each line that is wanted, None for a line `...`; None for all when they do not match."""
    if not want:
        return [] if begin == len(have) else None
    if want[0].strip() == ANYTHING:
        if len(want) == 1:
            return [None]
        for place in range(begin, len(have) + 1):
            rest = _aligned(have, want[1:], place)
            if rest is not None:
                return [None, *rest]
        return None
    if begin == len(have) or have[begin] != want[0]:
        return None
    rest = _aligned(have, want[1:], begin + 1)
    return None if rest is None else [begin, *rest]
