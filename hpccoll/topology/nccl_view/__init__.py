"""What NCCL says of the machine and of its choices, from the files that it writes when it is asked to.

=====================  ==========================================================  ==================
NCCL_TOPO_DUMP_FILE    the machine as NCCL sees it                                 `topology`
NCCL_GRAPH_DUMP_FILE   the channels that it has found for rings, trees, NVLS       `graphs`
NCCL_DEBUG=INFO        rings, trees and transports of every communicator           `log`
=====================  ==========================================================  ==================

Of NCCL 2.18 to 2.28.  Input is not trusted: documents with a DOCTYPE are refused, sizes and depths are
bounded.
"""
