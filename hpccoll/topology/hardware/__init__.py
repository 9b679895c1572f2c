"""What a host is made of, as data: processors, PCIe, GPUs, NVLink, network cards, limits.

`model` has the words, `detect.detect_host` reads them below a root directory (`/`, or what a test wrote),
`document` saves and loads them.  `affinity` says how near a GPU is to a network card, `domains` which GPUs
NVLink joins, `compare` in what hosts differ, `text` and `picture` show it.  What cannot be read is None, with
the reason in `Host.unknown`; nothing is guessed.
"""
