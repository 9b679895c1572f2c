/* Checksums of what moves between ranks (memory/checksums.py). */

#ifndef HPCCOLL_CHECKSUM_H
#define HPCCOLL_CHECKSUM_H

#include "module.h"

#include <stdint.h>

/* CRC-32 of some bytes; `value` is that of those before them, 0 at the start. */
uint32_t crc32_of(uint32_t value, const void *data, size_t nbytes);

#endif
