"""The table as a file: TOML that `hpccoll tune` writes and a person may edit.

::

    form = 1
    [machine]            the fingerprint;  [machine.settings]
    [run]                when and how it was measured: for people, not read
    [links]              for the cost model, by their names in `Links`; a missing one keeps its default
    [device]             NCCL's version and the ranks' devices, where arrays were on devices
    [[measured]]         memory, collective, bytes, plans: one for each size
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NoReturn

from hpccoll.errors import UsageError
from hpccoll.plans.catalogue import RECIPES
from hpccoll.plans.links import Links
from hpccoll.plans.measured import DEVICE, MEMORIES, Curve, DeviceFacts, Key, Measured, Time
from hpccoll.tuning.fingerprint import SETTINGS, Fingerprint, Setting

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORM = 1
LINKS = ("message_latency_us", "message_gbs", "network_latency_us", "network_gbs")
_KINDS = {str: "a text", int: "a whole number", bool: "true or false", list: "a list", dict: "a section"}
_MOST_BYTES = 1 << 50
_MOST_US = 1e12
_HEAD = """\
# What plans take on the machine below, by `hpccoll tune`.  docs/tuning.md says how it is read.
# A plan that is left out here is taken as if it had not been measured.
"""


@dataclass(frozen=True)
class Row:
    """One plan at one size: microseconds of a call, and the plan in words."""

    plan: str
    time_us: float
    low_us: float
    high_us: float
    variant: str = ""

    @property
    def time(self) -> Time:
        """In seconds."""
        return Time(self.time_us * 1e-6, self.low_us * 1e-6, self.high_us * 1e-6)


@dataclass(frozen=True)
class Entry:
    """The plans of a collective at a size in bytes, counted as nccl-tests does."""

    memory: str
    collective: str
    nbytes: int
    rows: tuple[Row, ...]

    @property
    def key(self) -> Key:
        return self.memory, self.collective


@dataclass(frozen=True)
class Table:
    """A whole file.

    Attributes:
        fingerprint: of which machine it is.
        entries: by memory and collective, each by size.
        links: measured ones, by their names in `Links`.
        device: what was there besides, where arrays were on devices.
        run: how it was measured, for people.

    """

    fingerprint: Fingerprint
    entries: tuple[Entry, ...]
    links: Mapping[str, float] = field(default_factory=dict)
    device: DeviceFacts | None = None
    run: Mapping[str, Setting] = field(default_factory=dict)

    def measured(self, source: str) -> Measured:
        """What selection reads of it."""
        curves: dict[Key, dict[str, list[tuple[int, Time]]]] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.nbytes):
            for row in entry.rows:
                curves.setdefault(entry.key, {}).setdefault(row.plan, []).append((entry.nbytes, row.time))
        made = {
            key: {plan: Curve(*zip(*points, strict=True)) for plan, points in plans.items()}
            for key, plans in curves.items()
        }
        links: dict[str, Any] = dict(self.links)
        return Measured(source, made, Links(**links), self.device)

    def updated(self, newer: Table) -> Table:
        """With all that a newer one of the same machine has, and what only this one has."""
        replaced = {entry.key for entry in newer.entries}
        gone = DEVICE if newer.device not in (None, self.device) else ""  # of other devices
        kept = [one for one in self.entries if one.key not in replaced and one.memory != gone]
        entries = (*kept, *newer.entries)
        links = {**self.links, **newer.links}
        return Table(newer.fingerprint, entries, links, newer.device or self.device, newer.run)


# --- writing ------------------------------------------------------------------------------------


def to_toml(table: Table) -> str:
    """The text of the file."""
    machine = asdict(table.fingerprint)
    settings = machine.pop("settings")
    lines = [_HEAD, f"form = {FORM}"]
    for name, values in (
        ("machine", machine),
        ("machine.settings", settings),
        ("run", table.run),
        ("links", table.links),
        ("device", {} if table.device is None else asdict(table.device)),
    ):
        if not values:
            continue
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    for entry in table.entries:
        lines += [
            "",
            "[[measured]]",
            f"memory = {_toml(entry.memory)}",
            f"collective = {_toml(entry.collective)}",
            f"bytes = {entry.nbytes}",
            "plans = [",
            *(f"    {{ {_row(row)} }}," for row in entry.rows),
            "]",
        ]
    return "\n".join(lines) + "\n"


def _row(row: Row) -> str:
    return ", ".join(f"{name} = {_toml(value)}" for name, value in asdict(row).items() if value != "")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}" if value != int(value) else f"{value:.1f}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    text = str(value)
    escaped = "".join(f"\\u{ord(one):04X}" if ord(one) < 32 or one in '"\\\x7f' else one for one in text)
    return f'"{escaped}"'


# --- reading ------------------------------------------------------------------------------------


def from_toml(text: str, file: str) -> Table:
    """The table that a text stands for.

    Args:
        text: of the file.
        file: its name, for errors.

    Raises:
        UsageError: the text is no TOML, or something in it is missing, unknown, or no time or size that there
            can be; with file, line, the field, and what it may be.

    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: not TOML: {error}") from None
    return _Reader(text, file).table(found)


class _Reader:
    """Checks each value; says where a wrong one is."""

    def __init__(self, text: str, file: str) -> None:
        self._lines = [line.strip() for line in text.splitlines()]
        self._file = file

    def table(self, found: Mapping[str, Any]) -> Table:
        where = self._at("")
        self._only(where, found, ("form", "machine", "run", "links", "device", "measured"))
        if found.get("form") != FORM:
            self._wrong(where, "form", found.get("form"), f"must be {FORM}: this hpccoll reads no other")
        run = self._section(found, "run", needed=False)
        return Table(
            self._fingerprint(self._section(found, "machine")),
            tuple(self._entries(found.get("measured", []))),
            dict(self._links(self._section(found, "links", needed=False))),
            self._device(self._section(found, "device")) if "device" in found else None,
            {name: value for name, value in run.items() if isinstance(value, (str, int))},
        )

    def _fingerprint(self, found: Mapping[str, Any]) -> Fingerprint:
        where = self._at("[machine]")
        names = [one.name for one in fields(Fingerprint)]
        self._only(where, found, names)
        return Fingerprint(
            hpccoll=self._value(where, found, "hpccoll", str),
            layout=self._value(where, found, "layout", str),
            hardware=self._texts(where, found, "hardware"),
            mpi=self._value(where, found, "mpi", str),
            extension=self._value(where, found, "extension", bool),
            settings=dict(self._settings(self._value(where, found, "settings", dict))),
        )

    def _settings(self, found: Mapping[str, Any]) -> Iterator[tuple[str, Setting]]:
        where = self._at("[machine.settings]")
        self._only(where, found, SETTINGS)
        for name in SETTINGS:
            yield name, self._value(where, found, name, str if name == "checks" else int)

    def _links(self, found: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        where = self._at("[links]")
        self._only(where, found, LINKS)
        for name in found:
            yield name, self._number(where, found, name)

    def _device(self, found: Mapping[str, Any]) -> DeviceFacts:
        where = self._at("[device]")
        self._only(where, found, ("nccl", "names"))
        return DeviceFacts(self._value(where, found, "nccl", int), self._texts(where, found, "names"))

    def _entries(self, found: Any) -> Iterator[Entry]:
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            self._wrong(self._at(""), "measured", found, "must be sections [[measured]]")
        seen = set()
        for number, one in enumerate(found):
            entry = self._entry(one, number)
            name = (*entry.key, entry.nbytes)
            if name in seen:
                where = self._at("[[measured]]", number)
                self._wrong(where, "bytes", entry.nbytes, f"{entry.collective} has this size twice")
            seen.add(name)
            yield entry

    def _entry(self, found: Mapping[str, Any], number: int) -> Entry:
        where = self._at("[[measured]]", number)
        self._only(where, found, ("memory", "collective", "bytes", "plans"))
        memory = self._one_of(where, found, "memory", MEMORIES)
        collective = self._one_of(where, found, "collective", [name for name in RECIPES if name != "barrier"])
        nbytes = self._value(where, found, "bytes", int)
        if not 1 <= nbytes <= _MOST_BYTES:
            self._wrong(where, "bytes", nbytes, f"must be from 1 to {_MOST_BYTES}")
        rows = self._value(where, found, "plans", list)
        what = f"{where} {collective} of {nbytes} bytes:"
        known = [recipe.name for recipe in RECIPES[collective]]
        made = tuple(self._row(what, row, known) for row in rows)
        twice = {row.plan for row in made if sum(row.plan == other.plan for other in made) > 1}
        if twice:
            self._wrong(what, "plan", min(twice), "is there twice")
        return Entry(memory, collective, nbytes, made)

    def _row(self, where: str, found: Any, known: Sequence[str]) -> Row:
        if not isinstance(found, dict):
            self._wrong(where, "plans", found, "must be { plan = NAME, time_us = NUMBER, ... }")
        self._only(where, found, [one.name for one in fields(Row)])
        plan = self._one_of(where, found, "plan", known)
        where = f"{where} plan {plan}:"
        time_us = self._number(where, found, "time_us")
        low_us, high_us = (
            self._number(where, found, name) if name in found else time_us for name in ("low_us", "high_us")
        )
        if not low_us <= time_us <= high_us:
            rule = f"must lie between low_us, {low_us}, and high_us, {high_us}"
            self._wrong(where, "time_us", time_us, rule)
        variant = self._value(where, found, "variant", str) if "variant" in found else ""
        return Row(plan, time_us, low_us, high_us, variant)

    # --- one value ------------------------------------------------------------------------------

    def _at(self, header: str, number: int = 0) -> str:
        """File and line of a section, the line where it is written as we write it."""
        lines = [index for index, line in enumerate(self._lines, 1) if line == header]
        at = f", line {lines[number]}" if header and number < len(lines) else ""
        return f"{self._file}{at}:" + (f" {header}" if header else "")

    def _section(self, found: Mapping[str, Any], name: str, *, needed: bool = True) -> Mapping[str, Any]:
        if name not in found and not needed:
            return {}
        section: Mapping[str, Any] = self._value(self._at(""), found, name, dict)
        return section

    def _value(self, where: str, found: Mapping[str, Any], name: str, kind: type) -> Any:
        if name not in found:
            raise UsageError(f"{where} {name} is missing: must be {_KINDS[kind]}")
        if type(found[name]) is not kind:
            self._wrong(where, name, found[name], f"must be {_KINDS[kind]}")
        return found[name]

    def _texts(self, where: str, found: Mapping[str, Any], name: str) -> tuple[str, ...]:
        values = self._value(where, found, name, list)
        if not all(isinstance(one, str) for one in values):
            self._wrong(where, name, values, "must be a list of texts")
        return tuple(values)

    def _number(self, where: str, found: Mapping[str, Any], name: str) -> float:
        if name not in found:
            raise UsageError(f"{where} {name} is missing: must be a number above 0")
        value = found[name]
        if type(value) not in (int, float) or not math.isfinite(value) or not 0 < value <= _MOST_US:
            self._wrong(where, name, value, f"must be a number above 0, at most {_MOST_US:g}")
        return float(value)

    def _one_of(self, where: str, found: Mapping[str, Any], name: str, known: Sequence[str]) -> str:
        value: str = self._value(where, found, name, str)
        if value not in known:
            self._wrong(where, name, value, f"must be one of {', '.join(known)}")
        return value

    def _only(self, where: str, found: Mapping[str, Any], known: Sequence[str]) -> None:
        unknown = [name for name in found if name not in known]
        if unknown:
            raise UsageError(f"{where} {unknown[0]!r} is unknown; there are {', '.join(known)}")

    def _wrong(self, where: str, name: str, value: Any, rule: str) -> NoReturn:
        shown = repr(value)
        raise UsageError(f"{where} {name} is {shown if len(shown) <= 80 else shown[:80] + '...'}: {rule}")
