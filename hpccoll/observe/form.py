"""The file of one rank's calls on one communicator: what recorder.py and _native/recorder.c write where.

    header      one page: fixed numbers, who wrote it as JSON, the error that ended the communicator
    records     [count] x 160 bytes, used in turn
    table       code objects and words that records refer to by offset, one after the other, never changed

Numbers are little-endian.  A record is whole when its first and last number are the same: the writer sets the
first, then the body, then the last.
"""

from __future__ import annotations

import struct

MAGIC = b"hpccoll trace 1\n"
PAGE = 4096
# Header: magic, then these.  `written` counts the records that were begun, `used` bytes of the table.
FIXED = struct.Struct(
    "<16s7q"
)  # magic, records, table, total bytes, written, used, monotonic ns, wall-clock ns
WRITTEN, USED, STATE, STATE_NS = 40, 48, 72, 80  # words that change, by their offset
ABOUT, ABOUT_BYTES = 128, 2432  # length 4 | JSON
ERROR, ERROR_BYTES = 2560, 1536  # length 4 | text

# What the process says of itself: at work, closed after an error, come to the end of its program.
AT_WORK, CLOSED, LEFT = range(3)

RECORD_BYTES = 160
RECORD = struct.Struct("<Q48s3q6i2qIiQ4IQ")
# Offsets in a record of what changes after it was begun.
FINGERPRINT, AGREED_NS, ENDED_NS, STATUS, STEP, CHUNK, CHUNKS, PEER, FAMILY = (
    8,
    64,
    72,
    80,
    84,
    88,
    92,
    96,
    100,
)
BYTES_DONE, BYTES_TOTAL, CALLER, PLAN, STEPS, ERROR_TEXT, COLLECTIVE = 104, 112, 120, 136, 140, 144, 148

# States of a call; the order is that of _native/recorder.h.
NOTHING, ENTERED, AGREED, MOVING, DONE, FAILED, REFUSED = range(7)
STATES = ("nothing", "entered", "agreed", "moving", "done", "failed", "refused")

FAMILIES = ("", "WORLD", "NODE", "NVLINK", "LEADERS", "RAIL", "messages")

# Entries of the table: kind 1, 3 bytes of nothing, length of the rest 4, and that, padded to 8.
ENTRY = struct.Struct("<B3xI")
TEXT, CODE = 1, 2
CODE_HEAD = struct.Struct("<iIHH")  # first line, number of lines, bytes of the file's name, of the function's
LINE = struct.Struct("<II")  # from this byte of the code on, this line
MOST_LINES = 4096
MOST_NAME_BYTES = 512


def sizes(total: int) -> tuple[int, int, int]:
    """How many records a file of so many bytes has, where its table begins, and how long that is."""
    count = (total - PAGE) * 5 // 8 // RECORD_BYTES
    table = PAGE + count * RECORD_BYTES
    return count, table, total - table
