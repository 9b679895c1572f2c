"""Which line of the user's program has called."""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType

# Files of code that is ours begin so.
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def calling_frame() -> FrameType | None:
    """The innermost frame of this thread whose code is not ours; None in a thread of ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return None if frame is None or frame.f_code.co_filename == threading.__file__ else frame


def calling_line() -> str:
    """Such as " at solver.py:88 (step)"; empty where there is none."""
    frame = calling_frame()
    if frame is None:
        return ""
    return line_text(frame.f_code, frame.f_lineno)


def line_text(code: CodeType, line: int) -> str:
    """A line of the program in words."""
    return f" at {os.path.basename(code.co_filename)}:{line} ({code.co_name})"
