"""Where tables lie, and the one that holds for a communicator: read by one rank, used by all or by none."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hpccoll import files
from hpccoll.config import Config
from hpccoll.errors import UsageError
from hpccoll.plans.measured import Measured
from hpccoll.topology.agreement import wait_all
from hpccoll.topology.machine import Machine
from hpccoll.tuning.fingerprint import Fingerprint, layout_part
from hpccoll.tuning.here import gather_fingerprint
from hpccoll.tuning.table import Table, from_toml, to_toml

OFF = "off"
MOST_BYTES = 16 << 20
_STEP = "the table of measured times"


def directory(environ: Mapping[str, str]) -> Path | None:
    """Where tables lie unless the setting `tuning` says another place; None where a user has no home."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # as the XDG specification has it: a relative path counts as unset
        home = environ.get("HOME", "")
        if not home:
            return None
        base = os.path.join(home, ".config")
    return Path(base) / "hpccoll" / "tuning"


def path_for(fingerprint: Fingerprint, setting: str, environ: Mapping[str, str]) -> Path:
    """Where the table of a machine is to be written.

    Raises: UsageError where there is no place, since the setting is "off" or there is no home.
    """
    if setting == OFF:
        raise UsageError('tuning is "off": give the file with --output')
    place = Path(setting) if setting else directory(environ)
    if place is None:
        raise UsageError("there is no place for the table: HOME is not set; give the file with --output")
    return place if place.suffix == ".toml" else place / fingerprint.file_name


def check_writable(path: Path) -> None:
    """Make the directory; raises UsageError where the table could not be written in it."""
    _make_directory(path)
    files.check_writable(path)


def write(table: Table, path: Path) -> None:
    """Put the table there, as a whole or not at all.  Raises: UsageError."""
    _make_directory(path)
    files.write_text(path, to_toml(table))


def _make_directory(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def load(private: MPI.Intracomm, machine: Machine, config: Config, deadline: float) -> Measured:
    """What was measured on this machine, with this layout and these settings; empty where nothing was.

    Collective, and the same on all ranks: rank 0 reads, the others get the text.  Where there can be no
    table, that costs one broadcast of a number.

    Args:
        private: a communicator on which nothing else is going on.
        machine: of its ranks.
        config: `tuning` is "" (the directory of `directory`), "off", a directory, or a file that ends in
            .toml.  A file that is named must be there; where it is of another machine, rank 0 warns, and it
            is not used; without a warning where this is a part of the world's ranks with another layout.
        deadline: of time.monotonic.

    Raises:
        UsageError: a file that is named cannot be read, or a table is wrong; on all ranks.
        CollectiveTimeoutError: not all ranks came.

    """
    if config.tuning == OFF:
        return Measured()
    place = Path(config.tuning) if config.tuning else directory(os.environ)
    maybe = private.rank == 0 and place is not None and _may_hold(place, str(machine.layout))
    answer = np.array([maybe], np.int64)
    wait_all([private.Ibcast(answer, 0)], deadline, _STEP, private.rank)
    if not answer[0]:
        return Measured()
    fingerprint = gather_fingerprint(private, machine, config, deadline)
    told = b""
    if private.rank == 0 and place is not None:
        told = json.dumps(_read(place, fingerprint)).encode()
    path, text, error = json.loads(_broadcast(private, told, deadline))
    if error:
        raise UsageError(f"tuning: {error}", rank=private.rank)
    if not path:
        return Measured()
    table = from_toml(text, path)
    differences = fingerprint.differences(table.fingerprint)
    if differences:
        # A file that is named is the world's: parts of it, of other layouts, need not say so each time.
        is_part = private.size < MPI.COMM_WORLD.size and fingerprint.layout != table.fingerprint.layout
        if private.rank == 0 and not is_part:
            warnings.warn(
                f"{path} is not used, as it was measured on another machine: here {'; '.join(differences)}",
                RuntimeWarning,
                stacklevel=2,
            )
        return Measured()
    return table.measured(path)


def _may_hold(place: Path, layout: str) -> bool:
    """Whether it is worth the ranks' while to find out what machine this is."""
    if place.suffix == ".toml":
        return True
    try:
        return any(place.glob(f"{layout_part(layout)}-*.toml"))
    except OSError:
        return False


def _read(place: Path, fingerprint: Fingerprint) -> tuple[str, str, str]:
    """Path and text of the table, and why it cannot be had; all empty where there is none."""
    named = place.suffix == ".toml"
    path = place if named else place / fingerprint.file_name
    try:
        if path.stat().st_size > MOST_BYTES:
            return "", "", f"{path} has more than {MOST_BYTES} bytes"
        return str(path), path.read_text(encoding="utf-8"), ""
    except FileNotFoundError:
        return "", "", f"{path} is not there" if named else ""
    except UnicodeDecodeError as error:
        return "", "", f"{path}: not UTF-8: {error.reason} at byte {error.start}"
    except OSError as error:
        return "", "", f"cannot read {path}: {error.strerror}"


def _broadcast(private: MPI.Intracomm, text: bytes, deadline: float) -> bytes:
    """The bytes that rank 0 has."""
    length = np.array([len(text)], np.int64)
    wait_all([private.Ibcast(length, 0)], deadline, _STEP, private.rank)
    data = np.zeros(int(length[0]), np.uint8)
    if private.rank == 0:
        data[:] = np.frombuffer(text, np.uint8)
    wait_all([private.Ibcast(data, 0)], deadline, _STEP, private.rank)
    return data.tobytes()
