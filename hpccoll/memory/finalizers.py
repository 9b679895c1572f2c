"""How memory on a device is let go: at once, or later where that could ruin a stream capture.

A driver's call that waits for the device, or frees memory that no graph made, ends a capture that is under
way with an error.  The garbage collector finalises in the midst of anything, so also of one.
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

_left: deque[Callable[[], bool]] = deque()
_collectors: set[int] = set()  # threads in which the garbage collector is at work


def when_possible(action: Callable[[], bool]) -> None:
    """Let something go.

    `action` returns False, and has done nothing, where it is not possible now: then it is tried again with
    later ones, and by `let_go_rest`.
    """
    let_go_rest()
    if not action():
        _left.append(action)


def let_go_rest() -> None:
    """Try what was not possible before."""
    for _ in range(len(_left)):
        try:
            action = _left.popleft()
        except IndexError:  # another thread has it
            return
        if not action():
            _left.append(action)


def is_collecting() -> bool:
    """Whether the garbage collector has called this, at a place in the program that nobody chose."""
    return threading.get_ident() in _collectors


def _note(phase: str, info: dict[str, Any]) -> None:
    if phase == "start":
        _collectors.add(threading.get_ident())
    else:
        _collectors.discard(threading.get_ident())


gc.callbacks.append(_note)
