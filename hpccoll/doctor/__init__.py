"""What is wrong with a machine, or with the way a job was started on it: checks, each with one verdict.

`finding` has the words; `hardware`, `cards`, `software` and `placement` are checks of facts that
`hpccoll topo` finds; `network` measures.
"""
