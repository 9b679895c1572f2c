"""The file of one rank's calls on one communicator: what recorder.py and _native/recorder.c write where.

    header      one page: fixed numbers, who wrote it as JSON, how its clock differs from rank 0's, the error
                that ended the communicator
    records     [count] x 160 bytes, used in turn: a call each
    events      [count] x 72 bytes, used in turn, where a timeline is wanted: what happened inside calls, and
                between them
    table       code objects and words that records refer to by offset, one after the other, never changed

Numbers are little-endian.  A record, or an event, is whole when its first and last number are the same: the
writer sets the first, then the body, then the last.
"""

from __future__ import annotations

import struct

MAGIC = b"hpccoll trace 2\n"
PAGE = 4096
# Header: magic, then these.  `written` counts the records that were begun, `used` bytes of the table.
FIXED = struct.Struct(
    "<16s7q"
)  # magic, records, table, total bytes, written, used, monotonic ns, wall-clock ns
WRITTEN, USED, STATE, STATE_NS = 40, 48, 72, 80  # words that change, by their offset
EVENTS, EVENTS_WRITTEN = 88, 96  # how many events there is room for, and how many were begun
CLOCK, CLOCK_BYTES = 104, 72  # how many measurements, and room for two
ORIGIN = 176  # where the table began when its entries were numbered
MEASUREMENT = struct.Struct("<4q")  # begun and over, by this clock; offset of rank 0's from it; error; in ns
ABOUT, ABOUT_BYTES = 192, 2368  # length 4 | JSON
ERROR, ERROR_BYTES = 2560, 1536  # length 4 | text

# What the process says: at work, closed after an error, come to the end of its program, closed well.
AT_WORK, CLOSED, LEFT, OVER = range(4)

RECORD_BYTES = 160
RECORD = struct.Struct("<Q48s3q2h5i2qIiQ4IQ")
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

BLOCKING, STARTED = range(2)  # whether the caller waits; as in _native/repeats.h

FAMILIES = ("", "WORLD", "NODE", "NVLINK", "LEADERS", "RAIL", "messages")

EVENT_BYTES = 72
EVENT = struct.Struct("<Q4qI3iQQ")
# Kinds of events: operations by their code (plans/program.py), and these: a part of the program that it
# named, a wait for a started call, a bucket, the wait for a step of buckets, the enqueuing of a call on a
# device, and its time there (with the error of its clock, in us, as `step`).  The number of WAITED is that of
# _native/recorder.h.
SPAN, WAITED, BUCKET, STEP_WAITED, ENQUEUED, ON_DEVICE = range(64, 70)

# Entries of the table: kind 1, 3 bytes of nothing, length of the rest 4, and that, padded to 8.
ENTRY = struct.Struct("<B3xI")
TEXT, CODE = 1, 2
CODE_HEAD = struct.Struct("<iIHH")  # first line, number of lines, bytes of the file's name, of the function's
LINE = struct.Struct("<II")  # from this byte of the code on, this line
MOST_LINES = 4096
MOST_NAME_BYTES = 512
MOST_TEXT_BYTES = 1 << 16


def shares(total: int, timeline: bool) -> tuple[int, int]:
    """How many records and how many events a file of so many bytes has."""
    room = total - PAGE
    if not timeline:
        return room * 5 // 8 // RECORD_BYTES, 0
    return room // 4 // RECORD_BYTES, room * 5 // 8 // EVENT_BYTES


def events_at(records: int) -> int:
    """Where the events begin."""
    return PAGE + records * RECORD_BYTES


def table_at(records: int, events: int) -> int:
    """Where the table begins."""
    return events_at(records) + events * EVENT_BYTES
