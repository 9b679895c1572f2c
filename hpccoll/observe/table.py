"""The table of a trace file: code objects, with the lines of their instructions, and words; each once."""

from __future__ import annotations

import threading
from types import CodeType

from hpccoll.observe import form
from hpccoll.observe.caller import line_text


class Table:
    """Adds to the table of one file.  What does not fit has the number 0.

    A code object that has a number is kept, so that none made later has its address.
    """

    def __init__(self, memory: memoryview, begin: int, length: int) -> None:
        self._memory = memory
        self._used = memory[form.USED : form.USED + 8].cast("q")
        self._begin, self._end = begin, begin + length
        self._codes: dict[int, tuple[CodeType, int]] = {}
        self._texts: dict[str, int] = {"": 0}
        self._lock = threading.Lock()

    def code(self, code: CodeType) -> int:
        """The number of a code object: where its entry lies."""
        found = self._codes.get(id(code))  # by identity: equal ones may be of different files
        if found is not None:
            return found[1]
        number = self._add(form.CODE, _packed(code, form.MOST_LINES))
        if not number:
            number = self._add(form.CODE, _packed(code, 0))
        if number:
            self._codes[id(code)] = code, number
        return number

    def line(self, number: int, instruction: int) -> str:
        """The line of an instruction of a code object that was added, in words; else empty."""
        code = next((code for code, known in self._codes.values() if known == number), None)
        if code is None:
            return ""
        lines = (line for begin, end, line in code.co_lines() if begin <= instruction < end)
        return line_text(code, next(lines, None) or code.co_firstlineno)

    def text(self, text: str, most_bytes: int = form.MOST_NAME_BYTES) -> int:
        """The number of some words, of which what is longer than that is left out."""
        found = self._texts.get(text)
        if found is None:
            found = self._add(form.TEXT, text.encode(errors="replace")[:most_bytes])
            if found:
                self._texts[text] = found
        return found

    def _add(self, kind: int, body: bytes) -> int:
        entry = form.ENTRY.pack(kind, len(body)) + body
        with self._lock:
            at = self._begin + self._used[0]
            length = -(-len(entry) // 8) * 8
            if at + length > self._end:
                return 0
            self._memory[at : at + len(entry)] = entry
            self._used[0] += length
            return at


def _packed(code: CodeType, most_lines: int) -> bytes:
    """A code object's entry; without the lines of its instructions where these are more than that."""
    file = code.co_filename.encode(errors="replace")[-form.MOST_NAME_BYTES :]
    name = getattr(code, "co_qualname", code.co_name).encode(errors="replace")[: form.MOST_NAME_BYTES]
    lines: list[tuple[int, int]] = []
    for start, _, line in code.co_lines():
        if line is not None and (not lines or lines[-1][1] != line):
            lines.append((start, line))
    if len(lines) > most_lines:
        lines = []
    head = form.CODE_HEAD.pack(code.co_firstlineno, len(lines), len(file), len(name))
    return head + file + name + b"".join(form.LINE.pack(*one) for one in lines)
