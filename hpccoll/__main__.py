"""`python -m hpccoll script.py ...` runs a script as `python -m mpi4py` does: what ends it ends the job.

An uncaught exception, or `sys.exit` with a status other than 0, on any rank aborts all, after its traceback.
The command `hpccoll` is `python -m hpccoll.cli`.
"""

from mpi4py.run import main

main()
