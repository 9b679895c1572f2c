"""Hosts and processes as JSON, and back.

A document is `{"schema": 1, "hosts": [...], "processes": [...]}` with the names of `model` as keys.  Fields
that this version does not know are ignored, missing ones take their defaults, so that older and newer
versions read one another's; `schema` grows when a field changes its meaning.
"""

from __future__ import annotations

import json
import math
import os
import types
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hpccoll.errors import UsageError
from hpccoll.files import write_text
from hpccoll.topology.hardware.model import Host, Process

SCHEMA = 1
MAX_BYTES = 1 << 28

T = TypeVar("T")


@dataclass(frozen=True)
class Survey:
    """What was found on all hosts.

    Attributes:
        hosts: one description for each host.
        processes: one for each rank, in rank order; () where no job was asked.
        host_of: for each rank the index of its host.

    """

    hosts: tuple[Host, ...]
    processes: tuple[Process, ...] = ()
    host_of: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.host_of) != len(self.processes) or not all(
            0 <= one < len(self.hosts) for one in self.host_of
        ):
            raise UsageError(
                f"a survey of {len(self.hosts)} hosts has {len(self.processes)} processes on hosts "
                f"{list(self.host_of)[:20]}: must be one host for each process"
            )

    def ranks(self, host: int) -> tuple[int, ...]:
        """The ranks on a host."""
        return tuple(rank for rank, one in enumerate(self.host_of) if one == host)


def encode(value: Any) -> Any:
    """A dataclass of `model` as what JSON knows."""
    return asdict(value)


def decode(kind: type[T], found: object, where: str = "") -> T:
    """The inverse of `encode`.

    Raises:
        UsageError: a field has another type, or one without a default is missing; the message has the place.

    """
    if not isinstance(found, dict):
        raise UsageError(f"{where or kind.__name__} is {_shown(found)}: must be an object")
    hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        place = f"{where}.{field.name}" if where else field.name
        if field.name in found:
            values[field.name] = _value(hints[field.name], found[field.name], place)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise UsageError(f"{place} is missing")
    return kind(**values)


def survey_as_dict(survey: Survey) -> dict[str, Any]:
    """What `load` reads."""
    return {"schema": SCHEMA, **encode(survey)}


def save(survey: Survey, path: str | os.PathLike[str]) -> None:
    """Write a survey to a file.  Raises: UsageError."""
    write_text(path, json.dumps(survey_as_dict(survey), indent=2) + "\n")


def load(path: str | os.PathLike[str]) -> Survey:
    """A survey from a file of `save`, or of `hpccoll topo --json`, which has it under "hardware".

    Raises:
        UsageError: the file cannot be read, is no such document, or is of a newer schema.

    """
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise UsageError(f"{path}: more than {MAX_BYTES} bytes")
        found = json.loads(raw)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    try:
        return survey_from_dict(found)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def survey_from_dict(found: object) -> Survey:
    """The inverse of `survey_as_dict`.  Raises: UsageError, as `load`."""
    if isinstance(found, dict) and "schema" not in found and isinstance(found.get("hardware"), dict):
        found = found["hardware"]
    schema = found.get("schema") if isinstance(found, dict) else None
    if type(schema) is not int or schema < 1:
        raise UsageError('there is no "schema" in it: not a description of hosts')
    if schema > SCHEMA:
        raise UsageError(f"schema {schema} is newer than {SCHEMA}, the one known here: take a newer hpccoll")
    return decode(Survey, found)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(hint: Any, found: object, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return (
            None
            if found is None
            else _value(next(one for one in inner if one is not type(None)), found, where)
        )
    if origin is tuple:
        if not isinstance(found, (list, tuple)):
            raise UsageError(f"{where} is {_shown(found)}: must be a list")
        return _tuple(inner, found, where)
    if is_dataclass(hint):
        return decode(hint, found, where)  # type: ignore[arg-type]
    if hint is float and type(found) is int:
        return float(found)
    if type(found) is not hint or (hint is float and not math.isfinite(found)):  # type: ignore[arg-type]
        raise UsageError(f"{where} is {_shown(found)}: must be {hint.__name__}")
    return found


def _tuple(inner: tuple[Any, ...], found: Sequence[object], where: str) -> tuple[Any, ...]:
    if inner[-1] is Ellipsis:
        return tuple(_value(inner[0], one, f"{where}[{place}]") for place, one in enumerate(found))
    if len(found) != len(inner):
        raise UsageError(f"{where} has {len(found)} entries: must have {len(inner)}")
    return tuple(
        _value(hint, one, f"{where}[{place}]")
        for place, (hint, one) in enumerate(zip(inner, found, strict=True))
    )


def _shown(found: object) -> str:
    return repr(found)[:60]
