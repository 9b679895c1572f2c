"""What callers pass, as runs of elements: arrays, buffers, MPI's lists and datatypes."""
