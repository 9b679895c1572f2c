/* CRC-32 as in zlib, gzip and Ethernet (polynomial 0x04c11db7, reflected): the value of zlib.crc32, sooner.
 *
 * Long runs are folded by carry-less multiplication where the processor has it: 128 bits of the message and the
 * remainder of x^n for the distance n at which they are added again (Gopal and others, "Fast CRC Computation for
 * Generic Polynomials Using PCLMULQDQ", Intel 2009).  The rest goes through tables, eight bytes at a time. */

#include "checksum.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define REFLECTED 0xedb88320u
#define GIL_BYTES 4096 /* of more than so many the GIL is let go */

static uint32_t tables[8][256]; /* tables[k][b]: byte b with k zero bytes after it */

static void
make_tables(void)
{
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit)
            crc = crc >> 1 ^ (crc & 1 ? REFLECTED : 0);
        tables[0][byte] = crc;
    }
    for (int zeros = 1; zeros < 8; ++zeros)
        for (int byte = 0; byte < 256; ++byte) {
            uint32_t before = tables[zeros - 1][byte];
            tables[zeros][byte] = before >> 8 ^ tables[0][before & 0xff];
        }
}

static uint32_t
by_tables(uint32_t crc, const unsigned char *data, size_t nbytes)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; nbytes >= 8; data += 8, nbytes -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= crc;
        crc = 0;
        for (int i = 0; i < 8; ++i)
            crc ^= tables[7 - i][word >> 8 * i & 0xff];
    }
#endif
    for (; nbytes > 0; ++data, --nbytes)
        crc = crc >> 8 ^ tables[0][(crc ^ *data) & 0xff];
    return crc;
}

#if defined(__x86_64__)

#define FOLDED 64 /* bytes: four runs of 128 bits side by side */

/* 128 bits, moved on by the distance that `by` is made for. */
__attribute__((target("pclmul,sse2"))) static inline __m128i
moved(__m128i bits, __m128i by)
{
    return _mm_xor_si128(_mm_clmulepi64_si128(bits, by, 0x00), _mm_clmulepi64_si128(bits, by, 0x11));
}

/* At least FOLDED bytes, a multiple of 16. */
__attribute__((target("pclmul,sse2"))) static uint32_t
by_folding(uint32_t crc, const unsigned char *data, size_t nbytes)
{
    /* x^(n+64) and x^n modulo the polynomial, reflected: n = 512 and 128 bits. */
    const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i *next = (const __m128i *)data;
    __m128i runs[4];
    unsigned char rest[16];
    for (int i = 0; i < 4; ++i)
        runs[i] = _mm_loadu_si128(next++);
    runs[0] = _mm_xor_si128(runs[0], _mm_cvtsi32_si128((int)crc));
    for (nbytes -= FOLDED; nbytes >= FOLDED; nbytes -= FOLDED)
        for (int i = 0; i < 4; ++i)
            runs[i] = _mm_xor_si128(moved(runs[i], by_512), _mm_loadu_si128(next++));
    for (int i = 1; i < 4; ++i)
        runs[i] = _mm_xor_si128(moved(runs[i - 1], by_128), runs[i]);
    for (; nbytes >= 16; nbytes -= 16)
        runs[3] = _mm_xor_si128(moved(runs[3], by_128), _mm_loadu_si128(next++));
    _mm_storeu_si128((__m128i *)rest, runs[3]);
    return by_tables(0, rest, sizeof rest);
}

static int
folds(void)
{
    return __builtin_cpu_supports("pclmul");
}

#else

#define FOLDED SIZE_MAX

static uint32_t
by_folding(uint32_t crc, const unsigned char *data, size_t nbytes)
{
    return by_tables(crc, data, nbytes);
}

static int
folds(void)
{
    return 0;
}

#endif

uint32_t
crc32_of(uint32_t value, const void *data, size_t nbytes)
{
    const unsigned char *next = data;
    uint32_t crc = ~value;
    if (nbytes >= FOLDED && folds()) {
        size_t whole = nbytes / 16 * 16;
        crc = by_folding(crc, next, whole);
        next += whole, nbytes -= whole;
    }
    return ~by_tables(crc, next, nbytes);
}

static PyObject *
crc32(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 1 && count != 2) {
        PyErr_SetString(PyExc_TypeError, "crc32 takes data and the value of what comes before");
        return NULL;
    }
    unsigned long value = count == 2 ? PyLong_AsUnsignedLongMask(args[1]) : 0;
    Py_buffer data;
    if ((count == 2 && PyErr_Occurred()) || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t found;
    if (data.len > GIL_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        found = crc32_of((uint32_t)value, data.buf, (size_t)data.len);
        Py_END_ALLOW_THREADS
    }
    else
        found = crc32_of((uint32_t)value, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(found);
}

int
add_checksum(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"crc32", (PyCFunction)(void (*)(void))crc32, METH_FASTCALL,
         "crc32(data, value=0): CRC-32 of bytes, those before them having had `value`."},
        {NULL, NULL, 0, NULL},
    };
    make_tables();
    return PyModule_AddFunctions(module, functions);
}
