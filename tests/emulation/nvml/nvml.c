/* NVML of the stand-in: all devices of the machine (it knows nothing of CUDA_VISIBLE_DEVICES), who they are and how
 * they are linked.
 *
 * STANDIN_NVLINK: `all` (as through switches), `none`, or pairs of devices that are linked directly, `0-1,2-3`.
 * STANDIN_FABRIC: `name:clique` of the NVLink fabric that the devices belong to, which may span hosts; without it
 * there is none.
 */
#include "nvml.h"

#include "../cuda/standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gpu {
    int index;
    bool to_switch;
    int link_count;
    int links[MOST_DEVICES];       /* the device at the other end */
};

static struct gpu gpus[MOST_DEVICES];
static int users;

/* ---- links ---- */

static void link_pair(int one, int other)
{
    if (one == other || one >= settings.devices || other >= settings.devices)
        return;
    gpus[one].links[gpus[one].link_count++] = other;
    gpus[other].links[gpus[other].link_count++] = one;
}

static void read_pairs(const char *text)
{
    char *copy = strdup(text), *rest = copy;
    for (char *item = strsep(&rest, ","); item; item = strsep(&rest, ",")) {
        unsigned one, other;
        if (sscanf(item, "%u-%u", &one, &other) != 2) {
            complain("STANDIN_NVLINK=%s: expected all, none, or pairs such as 0-1,2-3", text);
            abort();
        }
        link_pair((int)one, (int)other);
    }
    free(copy);
}

static void find_gpus(void)
{
    const char *text = getenv("STANDIN_NVLINK");
    read_settings();
    for (int i = 0; i < settings.devices; i++)
        gpus[i] = (struct gpu){.index = i, .to_switch = !text || !*text || !strcmp(text, "all")};
    if (text && *text && strcmp(text, "all") && strcmp(text, "none"))
        read_pairs(text);
}

static bool are_linked(const struct gpu *one, const struct gpu *other)
{
    if (one->to_switch && other->to_switch)
        return true;
    for (int i = 0; i < one->link_count; i++)
        if (one->links[i] == other->index)
            return true;
    return false;
}

/* ---- beginning and end ---- */

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    if (!users++)
        find_gpus();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    users--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    default:
        return "Unknown Error";
    }
}

static nvmlReturn_t check(nvmlDevice_t gpu, const void *out)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    bool known = gpu >= gpus && gpu < gpus + settings.devices;
    return known && out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t write_text(char *out, unsigned room, const char *text)
{
    return snprintf(out, room, "%s", text) < (int)room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* ---- the machine ---- */

nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned room)
{
    return users ? write_text(out, room, "0.0.0-standin") : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = CUDA_VERSION;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    *count = (unsigned)settings.devices;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *gpu)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (index >= (unsigned)settings.devices)
        return NVML_ERROR_INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *gpu)
{
    return nvmlDeviceGetHandleByIndex_v2(index, gpu);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *text, nvmlDevice_t *gpu)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    for (int i = 0; i < settings.devices; i++) {
        char uuid[48];
        write_uuid(uuid, uuid_of_index(i));
        if (!strcmp(uuid, text)) {
            *gpu = &gpus[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *gpu)
{
    unsigned domain = 0, bus, slot;
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (domain || slot || bus < 1 || bus > (unsigned)settings.devices)
        return NVML_ERROR_NOT_FOUND;
    *gpu = &gpus[bus - 1];
    return NVML_SUCCESS;
}

/* ---- a device ---- */

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t gpu, unsigned *index)
{
    nvmlReturn_t result = check(gpu, index);
    if (result == NVML_SUCCESS)
        *index = (unsigned)gpu->index;
    return result;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t gpu, unsigned *number)
{
    return nvmlDeviceGetIndex(gpu, number);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t gpu, char *out, unsigned room)
{
    nvmlReturn_t result = check(gpu, out);
    return result == NVML_SUCCESS ? write_text(out, room, "NVIDIA CPU stand-in") : result;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t gpu, char *out, unsigned room)
{
    char uuid[48];
    nvmlReturn_t result = check(gpu, out);
    if (result != NVML_SUCCESS)
        return result;
    write_uuid(uuid, uuid_of_index(gpu->index));
    return write_text(out, room, uuid);
}

static void write_pci(nvmlPciInfo_t *out, int bus)
{
    *out = (nvmlPciInfo_t){.bus = (unsigned)bus};
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "0000:%02X:00.0", bus & 255);
    snprintf(out->busId, sizeof out->busId, "00000000:%02X:00.0", bus & 255);
}

/* Bus 1, 2, ...: as cuda/devices.c says. */
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t gpu, nvmlPciInfo_t *out)
{
    nvmlReturn_t result = check(gpu, out);
    if (result == NVML_SUCCESS)
        write_pci(out, gpu->index + 1);
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t gpu, nvmlMemory_t *out)
{
    nvmlReturn_t result = check(gpu, out);
    if (result == NVML_SUCCESS)
        *out = (nvmlMemory_t){.total = settings.memory, .free = settings.memory};
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t gpu, nvmlMemory_v2_t *out)
{
    nvmlReturn_t result = check(gpu, out);
    if (result == NVML_SUCCESS)
        *out = (nvmlMemory_v2_t){.version = out->version, .total = settings.memory, .free = settings.memory};
    return result;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t gpu, int *major, int *minor)
{
    nvmlReturn_t result = check(gpu, major);
    if (result == NVML_SUCCESS) {
        *major = 9;
        *minor = 0;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t gpu, unsigned *current, unsigned *pending)
{
    nvmlReturn_t result = check(gpu, current);
    if (result == NVML_SUCCESS)
        *current = *pending = 0;
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t gpu, unsigned *mode)
{
    nvmlReturn_t result = check(gpu, mode);
    if (result == NVML_SUCCESS)
        *mode = 0;
    return result;
}

/* ---- NVLink ---- */

static nvmlReturn_t check_link(nvmlDevice_t gpu, unsigned link, const void *out)
{
    nvmlReturn_t result = check(gpu, out);
    if (result != NVML_SUCCESS)
        return result;
    if (!gpu->to_switch && !gpu->link_count)
        return NVML_ERROR_NOT_SUPPORTED;
    return link < NVLINK_MOST_LINKS ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static bool is_active(nvmlDevice_t gpu, unsigned link)
{
    return gpu->to_switch || link < (unsigned)gpu->link_count;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t gpu, unsigned link, unsigned *active)
{
    nvmlReturn_t result = check_link(gpu, link, active);
    if (result == NVML_SUCCESS)
        *active = is_active(gpu, link);
    return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t gpu, unsigned link, unsigned *version)
{
    nvmlReturn_t result = check_link(gpu, link, version);
    if (result == NVML_SUCCESS)
        *version = 6;   /* NVML's number for NVLink 4 */
    return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t gpu, unsigned link, unsigned capability, unsigned *out)
{
    (void)capability;
    nvmlReturn_t result = check_link(gpu, link, out);
    if (result == NVML_SUCCESS)
        *out = is_active(gpu, link);
    return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t gpu, unsigned link, unsigned *type)
{
    nvmlReturn_t result = check_link(gpu, link, type);
    if (result == NVML_SUCCESS && !is_active(gpu, link))
        result = NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS)
        *type = gpu->to_switch ? NVLINK_TO_SWITCH : NVLINK_TO_GPU;
    return result;
}

/* The switches are at bus C0. */
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t gpu, unsigned link, nvmlPciInfo_t *out)
{
    nvmlReturn_t result = check_link(gpu, link, out);
    if (result == NVML_SUCCESS && !is_active(gpu, link))
        result = NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS)
        write_pci(out, gpu->to_switch ? 0xC0 : gpu->links[link] + 1);
    return result;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned index, unsigned *status)
{
    nvmlReturn_t result = check(one, status);
    if (result == NVML_SUCCESS)
        result = check(other, status);
    if (result == NVML_SUCCESS)
        *status = index != P2P_BY_NVLINK || are_linked(one, other) ? P2P_OK : P2P_NOT_SUPPORTED;
    return result;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level)
{
    nvmlReturn_t result = check(one, level);
    if (result == NVML_SUCCESS)
        result = check(other, level);
    if (result == NVML_SUCCESS)
        *level = one == other ? TOPOLOGY_INTERNAL : TOPOLOGY_NODE;
    return result;
}

/* ---- the fabric ---- */

static void read_fabric(nvmlGpuFabricInfo_t *out)
{
    const char *text = getenv("STANDIN_FABRIC");
    *out = (nvmlGpuFabricInfo_t){.state = FABRIC_NOT_SUPPORTED};
    if (!text || !*text)
        return;
    uint64_t words[2] = {0, 0};
    const char *letter = text;
    for (; *letter && *letter != ':'; letter++)
        words[0] = mix(words[0] ^ (unsigned char)*letter);
    words[1] = mix(words[0]);
    memcpy(out->clusterUuid, words, sizeof words);
    out->cliqueId = *letter ? (unsigned)atoi(letter + 1) : 0;
    out->state = FABRIC_COMPLETED;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t gpu, nvmlGpuFabricInfo_t *out)
{
    nvmlReturn_t result = check(gpu, out);
    if (result == NVML_SUCCESS)
        read_fabric(out);
    return result;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t gpu, nvmlGpuFabricInfoV_t *out)
{
    nvmlReturn_t result = check(gpu, out);
    if (result != NVML_SUCCESS)
        return result;
    nvmlGpuFabricInfo_t info;
    read_fabric(&info);
    memcpy(out->clusterUuid, info.clusterUuid, sizeof info.clusterUuid);
    out->status = NVML_SUCCESS;
    out->cliqueId = info.cliqueId;
    out->state = info.state;
    out->healthMask = 0;
    return NVML_SUCCESS;
}
