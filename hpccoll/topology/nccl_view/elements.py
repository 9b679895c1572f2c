"""XML elements without a DOCTYPE, and so without entities; depth and number are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from hpccoll.errors import UsageError

MAX_BYTES = 1 << 26
_MAX_DEPTH, _MAX_ELEMENTS = 100, 1_000_000


@dataclass
class Element:
    """An element: its name, its attributes, what is inside, and its place for messages."""

    name: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def named(self, name: str) -> Iterator[Element]:
        """The children of a name."""
        return (child for child in self.children if child.name == name)

    def text(self, name: str) -> str | None:
        """An attribute; None where it is missing or empty."""
        return self.attributes.get(name) or None

    def number(self, name: str, default: int | None = None) -> int | None:
        """An attribute as a whole number, hexadecimal where it begins with 0x.  Raises: UsageError."""
        found = self.text(name)
        if found is None:
            return default
        try:
            if len(found) > 20:
                raise ValueError
            return int(found, 16 if found.lower().startswith("0x") else 10)
        except ValueError:
            self.refuse(name, "a whole number")

    def decimal(self, name: str) -> float | None:
        """An attribute as a number.  Raises: UsageError."""
        found = self.text(name)
        try:
            return None if found is None else float(found)
        except ValueError:
            self.refuse(name, "a number")

    def needed(self, name: str) -> int:
        """A number that must be there.  Raises: UsageError."""
        found = self.number(name)
        if found is None:
            raise UsageError(f"line {self.line}: <{self.name}> has no {name}")
        return found

    def refuse(self, name: str, rule: str) -> NoReturn:
        """Raises UsageError about an attribute."""
        value = self.attributes.get(name, "")[:40]
        raise UsageError(f"line {self.line}: <{self.name} {name}={value!r}>: must be {rule}")


def parse(document: str | bytes, root: str) -> Element:
    """The element `root` that a document consists of.

    Raises:
        UsageError: it is not well-formed (as when NCCL was ended while it wrote), is another document, has a
            DOCTYPE, or is larger or deeper than any that NCCL writes.

    """
    if len(document) > MAX_BYTES:
        raise UsageError(f"{len(document)} bytes of XML: more than {MAX_BYTES}")
    top = Element("", {}, 0)
    reader = _Reader(top)
    try:
        reader.parser.Parse(document, True)
    except expat.ExpatError as error:
        raise UsageError(f"not a whole XML document: {error}") from error
    except UnicodeEncodeError as error:
        raise UsageError(f"not an XML document: {error.reason}") from error
    (found,) = top.children
    if found.name != root:
        raise UsageError(f"the document is <{found.name[:40]}>: must be <{root}>")
    return found


class _Reader:
    def __init__(self, top: Element) -> None:
        self.open, self.count = [top], 0
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = self.doctype
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end

    def doctype(self, *_: object) -> None:
        raise UsageError("the document has a DOCTYPE, which NCCL never writes: refused")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if len(self.open) > _MAX_DEPTH or self.count > _MAX_ELEMENTS:
            raise UsageError(f"more than {_MAX_DEPTH} levels or {_MAX_ELEMENTS} elements of XML: refused")
        element = Element(name, attributes, self.parser.CurrentLineNumber)
        self.open[-1].children.append(element)
        self.open.append(element)

    def end(self, name: str) -> None:
        self.open.pop()
