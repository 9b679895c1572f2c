"""What to do: one collective of one layout as data, and its readers.

A `Plan` (steps.py) is an immutable list of steps.  The same object is lowered to each rank's program
and executed (lower.py, runtime), proved (verify.py), priced (cost.py) and drawn (draw.py).  Nothing
here knows MPI, a GPU or how bytes move.
"""
