"""`python -m hpccoll script.py ...` runs a script with our communicator in the place of MPI.COMM_WORLD.

As with `python -m mpi4py`, `-m module` and `-c code` may stand for the script, and what ends it on one rank
ends the job: an uncaught exception, or `sys.exit` with a status other than 0, on any rank aborts all, after
its traceback.  Options are the HPCCOLL_ variables.  The command `hpccoll` is `python -m hpccoll.cli`.
"""

from mpi4py.run import main

from hpccoll.embedding import install
from hpccoll.errors import UsageError

try:
    install()
except UsageError as error:
    raise SystemExit(f"python -m hpccoll: {error}") from None
main()
