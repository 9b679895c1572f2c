/* The part of NVML's interface that the stand-in has: numbers and layouts as NVIDIA's nvml.h and pynvml give them. */
#ifndef STANDIN_NVML_H
#define STANDIN_NVML_H

typedef int nvmlReturn_t;
typedef struct gpu *nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
};

enum { NVLINK_TO_GPU = 0, NVLINK_TO_SWITCH = 2, NVLINK_MOST_LINKS = 18 };
enum { P2P_BY_NVLINK = 2, P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };
enum { FABRIC_NOT_SUPPORTED = 0, FABRIC_COMPLETED = 3 };
enum { TOPOLOGY_INTERNAL = 0, TOPOLOGY_NODE = 40 };

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    unsigned cliqueId;
    unsigned char state;
} nvmlGpuFabricInfo_t;

/* Versions 2 and 3; the third has a byte more, where this one has padding. */
typedef struct {
    unsigned version;
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    unsigned cliqueId;
    unsigned char state;
    unsigned healthMask;
} nvmlGpuFabricInfoV_t;

#endif
