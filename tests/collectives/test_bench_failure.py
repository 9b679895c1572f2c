"""A rank that fails alone in `hpccoll bench` ends the job: no other rank waits for it for ever."""

from __future__ import annotations

from tests.support.launch import run_ranks

PROGRAM = """
import argparse, sys
import hpccoll
from hpccoll.cli import bench
from hpccoll.cli.bench import sweep

sweep._PATIENCE_S = 1.0

class Faulty(hpccoll.Communicator):
    calls = 0

    def Allreduce(self, sendbuf, recvbuf, op):
        super().Allreduce(sendbuf, recvbuf, op)
        self.calls += 1
        if self.rank == 0 and self.calls > 15:
            raise hpccoll.PeerLostError("rank 1 left, on purpose")

hpccoll.Communicator = Faulty
parser = argparse.ArgumentParser()
bench.configure(parser)
sys.exit(bench.run(parser.parse_args(sys.argv[1:])))
"""


def test_a_rank_that_fails_alone_ends_the_job() -> None:
    arguments = ["allreduce", "-b", "8", "-e", "1K", "-f", "2", "-n", "3"]
    result = run_ranks(2, ["-c", PROGRAM, *arguments], timeout_s=45)
    assert not result.timed_out
    assert result.returncode != 0
    assert result.seconds > 1.0
    assert "# error: PeerLostError: rank 1 left, on purpose" in result.stdout
    # One size has 10 calls: the row before the failure is there, and the end of the table.
    assert sum(" float     sum " in line for line in result.stdout.splitlines()) == 1
    assert "# Collective test concluded" in result.stdout
