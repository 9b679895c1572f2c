"""Who is where and how fast: nodes, levels and groups of ranks.

`layout` is pure data and imports no MPI; `hosts` knows what identifies the node of a process;
`machine` lets all ranks agree on one answer; `report` prints it.
"""
