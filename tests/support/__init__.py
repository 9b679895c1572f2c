"""What the tests stand on: launching and judging MPI runs, oracles, virtual hosts."""
