/* Who a device is: the same in the CUDA and the NVML stand-in, and another on each host. */
#include "standin.h"

#include <string.h>

CUuuid uuid_of_index(int index)
{
    uint64_t words[2] = {1469598103934665603u, (uint64_t)index};
    for (const char *letter = settings.host; *letter; letter++)
        words[0] = (words[0] ^ (unsigned char)*letter) * 1099511628211u;
    words[1] = mix(words[0] ^ mix((uint64_t)index + 1));
    words[0] = mix(words[1]);
    CUuuid uuid;
    memcpy(uuid.bytes, words, sizeof uuid.bytes);
    return uuid;
}

void write_uuid(char text[48], CUuuid uuid)
{
    static const char form[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    int nibble = 0;
    for (const char *letter = form; *letter; letter++)
        if (*letter == 'x') {
            unsigned byte = (unsigned char)uuid.bytes[nibble / 2];
            *text++ = "0123456789abcdef"[nibble % 2 ? byte & 15 : byte >> 4];
            nibble++;
        } else {
            *text++ = *letter;
        }
    *text = 0;
}
