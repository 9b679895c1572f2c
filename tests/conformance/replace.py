"""Our communicators in place of MPI's predefined ones."""

from __future__ import annotations

from mpi4py import MPI

import hpccoll

PLAIN = MPI.COMM_WORLD
"""MPI's own, for what a run has to say about itself."""


def replace() -> tuple[hpccoll.Communicator, hpccoll.Communicator]:
    """From here on, whoever looks up MPI.COMM_WORLD or MPI.COMM_SELF finds the communicators returned."""
    world, alone = hpccoll.Communicator(MPI.COMM_WORLD), hpccoll.Communicator(MPI.COMM_SELF)
    MPI.COMM_WORLD, MPI.COMM_SELF = world, alone
    return world, alone
