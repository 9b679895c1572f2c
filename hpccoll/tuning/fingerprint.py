"""Which machine a table is of: what its times depend on, in words that a person can compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

# Settings by which the same plan takes another time.
SETTINGS = (
    "checks",
    "small_bytes",
    "segment_bytes",
    "chunk_bytes",
    "staging_bytes",
    "single_copy_bytes",
)
Setting = str | int


@dataclass(frozen=True)
class Fingerprint:
    """What must be the same for a table to hold.  No host's name: the next job gets others of the same kind.

    Attributes:
        hpccoll: its version, since another one has other plans.
        layout: as `Layout` writes it.
        hardware: the hosts of the nodes, in their order, alike ones together: processors, network.
        mpi: the library and its version.
        extension: every rank uses the C extension.
        settings: those of `SETTINGS`.

    """

    hpccoll: str
    layout: str
    hardware: tuple[str, ...]
    mpi: str
    extension: bool
    settings: Mapping[str, Setting]

    @property
    def file_name(self) -> str:
        """Of its table: the beginning is the layout's alone, the rest that of everything."""
        return f"{layout_part(self.layout)}-{_digest(json.dumps(asdict(self), sort_keys=True))}.toml"

    def differences(self, other: Fingerprint) -> list[str]:
        """In what another one differs, in words: `field: this, not that`."""
        found = []
        for name in ("hpccoll", "layout", "hardware", "mpi", "extension"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                found.append(f"{name}: {_words(mine)}, not {_words(its)}")
        for name in SETTINGS:
            if self.settings[name] != other.settings[name]:
                found.append(f"{name}: {self.settings[name]}, not {other.settings[name]}")
        return found


def layout_part(layout: str) -> str:
    """What the names of a layout's tables begin with."""
    plain = layout if len(layout) <= 24 and layout.replace("+", "").isalnum() else ""
    return f"{plain or 'layout'}-{_digest(layout)[:4]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _words(value: object) -> str:
    return "; ".join(value) if isinstance(value, tuple) else str(value)
