"""Starting a communicator's recorder."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import signal
import threading
import warnings
from types import FrameType
from typing import Any

from mpi4py import MPI

from hpccoll.config import Config
from hpccoll.errors import HpccollError
from hpccoll.observe import files, parts
from hpccoll.observe.recorder import Recorder, Silent, Writer
from hpccoll.topology.agreement import gather
from hpccoll.topology.machine import Machine

ON_SIGNAL = "on-signal"  # beside the files, the directory of their copies


def open_recorder(
    comm: MPI.Intracomm, config: Config, machine: Machine, name: str, deadline: float
) -> Silent:
    """A recorder of the calls on a communicator.  Collective, with the same settings on all ranks.

    Where this rank can have no file it records nothing, and the program goes on.
    """
    if config.recorder == "off":
        return Silent("recorder is off")
    token = gather(comm, secrets.token_bytes(8), deadline, "recorder")[0].hex()
    timeline = bool(config.trace)
    directory, nbytes = config.trace_dir, config.trace_bytes
    if timeline:
        directory, nbytes = config.trace, config.timeline_bytes
    try:
        segment = files.new_file(directory, nbytes, token, comm.rank)
    except HpccollError as error:
        if directory:
            warnings.warn(f"no calls are recorded: {error}", RuntimeWarning, stacklevel=2)
        return Silent(str(error))
    if config.trace_signal:
        _listen(config.trace_signal)
    world_rank = machine.world_ranks[comm.rank]
    writer = Writer(token, comm.rank, comm.size, machine.node, name[:64], world_rank)
    if timeline:
        parts.begin(directory, token, world_rank, config.trace_keep)
    return Recorder(segment, writer, keep=config.trace_keep, native=config.native, timeline=timeline)


@functools.cache
def _listen(name: str) -> None:
    """Copy all files when a signal comes, then do what was done before; once in a process."""
    if threading.current_thread() is not threading.main_thread():
        return
    number = signal.Signals[name]
    before: Any = signal.getsignal(number)

    def handle(number: int, frame: FrameType | None) -> None:
        for recorder in list(files.open_recorders):
            if recorder.path is not None:
                with contextlib.suppress(HpccollError):  # the program goes on
                    recorder.dump(os.path.join(os.path.dirname(recorder.path), ON_SIGNAL))
        if callable(before):
            before(number, frame)

    signal.signal(number, handle)
