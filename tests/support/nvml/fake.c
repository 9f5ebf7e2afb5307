/* A stand-in for NVIDIA's libnvidia-ml.so.1, for machines without a GPU. The answers are lines of the text file that
 * FAKE_NVML_SCENE names, read again at every query, so that a test can change them during a run:
 *
 *     gpus 2                       how many cards there are
 *     * name NVIDIA H100           what every card answers
 *     1 celsius 90                 what one card answers
 *     1 mhz !15                    what one card refuses, with this error of NVML's
 *     1.0 uuid MIG-...             what the first MIG slice of card 1 answers
 *
 * What the file does not have is refused with NVML_ERROR_NOT_SUPPORTED. Without a file the driver is not loaded. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_DRIVER 9
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define TOO_SMALL 7
#define TIMED_OUT 10
#define CARDS 16
#define SLICES 8

typedef struct { char id[32]; } Device;
typedef unsigned long long u64;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned multiprocessors, copy, decode, encode, jpeg, ofa, gpu, compute; u64 megabytes; } Attributes;
typedef struct { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; } Process;
typedef struct { Device *device; u64 type, data; unsigned gpu_instance, compute_instance; } Event;

static Device devices[CARDS][SLICES + 1]; /* the last of each is the whole card */

/* Find the answer to a query; the last line that fits counts, and one for this device before one for all. */
static int look(const char *id, const char *query, char *answer, size_t size) {
    const char *path = getenv("FAKE_NVML_SCENE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    int result = NOT_SUPPORTED, exact = 0;
    if (!file) return NO_DRIVER;
    while (fgets(line, sizeof line, file)) {
        char who[32], what[64];
        int start = 0;
        if (sscanf(line, "%31s %63s %n", who, what, &start) < 2 || !start || strcmp(what, query)) continue;
        if (strcmp(who, id) && (exact || strcmp(who, "*"))) continue;
        exact = !strcmp(who, id);
        line[strcspn(line, "\n")] = 0;
        result = line[start] == '!' ? atoi(line + start + 1) : 0;
        snprintf(answer, size, "%s", line + start);
    }
    fclose(file);
    return result;
}

static int number(const char *id, const char *query, u64 *value) {
    char answer[128];
    int result = look(id, query, answer, sizeof answer);
    if (!result) *value = strtoull(answer, NULL, 0);
    return result;
}

static int small(const char *id, const char *query, unsigned *value) {
    u64 wide = 0;
    int result = number(id, query, &wide);
    if (!result) *value = (unsigned)wide;
    return result;
}

static int both(const char *id, const char *query, unsigned *first, unsigned *second) {
    int result = small(id, query, first);
    if (!result) *second = *first;
    return result;
}

static int pci(const char *id, const char *query, Pci *info) {
    memset(info, 0, sizeof *info);
    return look(id, query, info->bus_id, sizeof info->bus_id);
}

int nvmlInitWithFlags(unsigned flags) {
    unsigned ignored;
    int result = small("library", "init", &ignored);
    return result == NOT_SUPPORTED ? 0 : result;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { return "Unknown Error"; } /* the package has words for the known ones */
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return look("library", "driver", text, size); }
int nvmlDeviceGetCount_v2(unsigned *count) { return small("library", "gpus", count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    unsigned ignored;
    int result;
    *device = &devices[index][SLICES];
    snprintf((*device)->id, sizeof (*device)->id, "%u", index);
    result = small((*device)->id, "handle", &ignored);
    return result == NOT_SUPPORTED ? 0 : result;
}
int nvmlDeviceGetMinorNumber(Device *d, unsigned *number) { return small(d->id, "minor", number); }
int nvmlDeviceGetUUID(Device *d, char *text, unsigned size) { return look(d->id, "uuid", text, size); }
int nvmlDeviceGetName(Device *d, char *text, unsigned size) { return look(d->id, "name", text, size); }
int nvmlDeviceGetPciInfo_v3(Device *d, Pci *info) { return pci(d->id, "bus", info); }
int nvmlDeviceGetTopologyCommonAncestor(Device *a, Device *b, unsigned *level) {
    char query[32];
    snprintf(query, sizeof query, "ancestor.%s", b->id);
    return small(a->id, query, level) && small(a->id, "ancestor", level);
}
int nvmlDeviceGetP2PStatus(Device *a, Device *b, unsigned capability, unsigned *status) {
    char query[32];
    snprintf(query, sizeof query, "p2p.%s", b->id);
    return small(a->id, query, status) && small(a->id, "p2p", status);
}

/* MIG: "1 mig 2" is card 1 in MIG mode with two slices. */
int nvmlDeviceGetMigMode(Device *d, unsigned *now, unsigned *pending) {
    unsigned slices;
    int result = small(d->id, "mig", &slices);
    if (!result) *now = *pending = 1;
    return result;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *count) { *count = SLICES - 1; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **slice) {
    unsigned slices = 0;
    if (small(d->id, "mig", &slices) || index >= slices) return NOT_FOUND;
    *slice = &devices[atoi(d->id)][index];
    snprintf((*slice)->id, sizeof (*slice)->id, "%.4s.%u", d->id, index);
    return 0;
}
int nvmlDeviceGetAttributes_v2(Device *d, Attributes *has) {
    memset(has, 0, sizeof *has);
    return small(d->id, "gpu_slices", &has->gpu) || small(d->id, "compute_slices", &has->compute) ||
           number(d->id, "megabytes", &has->megabytes) ? NOT_SUPPORTED : 0;
}

/* NVLinks: "* nvlinks 18" to a switch, or "0 nvlinks 4" and "0 nvlink_bus 00000000:41:00.0". */
int nvmlDeviceGetNvLinkState(Device *d, unsigned link, unsigned *up) {
    unsigned links = 0;
    if (small(d->id, "nvlinks", &links) || link >= links) return NOT_SUPPORTED;
    *up = 1;
    return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *d, unsigned link, Pci *info) { return pci(d->id, "nvlink_bus", info); }
int nvmlDeviceGetNvLinkRemoteDeviceType(Device *d, unsigned link, unsigned *type) {
    Pci info;
    *type = nvmlDeviceGetNvLinkRemotePciInfo_v2(d, link, &info) ? 2 : 0;
    return 0;
}

int nvmlDeviceGetClockInfo(Device *d, unsigned type, unsigned *mhz) { return small(d->id, "mhz", mhz); }
int nvmlDeviceGetMaxClockInfo(Device *d, unsigned type, unsigned *mhz) { return small(d->id, "max_mhz", mhz); }
int nvmlDeviceGetTemperature(Device *d, unsigned sensor, unsigned *celsius) { return small(d->id, "celsius", celsius); }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, u64 *bits) { return number(d->id, "reasons", bits); }
int nvmlDeviceGetViolationStatus(Device *d, unsigned policy, u64 *times) {
    times[0] = 0;
    return number(d->id, policy == 1 ? "thermal_ns" : "power_ns", times + 1);
}
int nvmlDeviceGetTotalEccErrors(Device *d, unsigned kind, unsigned counter, u64 *count) {
    return number(d->id, kind ? "uncorrected" : "corrected", count);
}
int nvmlDeviceGetRemappedRows(Device *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *pending = *failed = 0;
    small(d->id, "remap_pending", pending);
    small(d->id, "remap_failed", failed);
    return small(d->id, "remapped", uncorrected);
}
int nvmlDeviceGetUtilizationRates(Device *d, unsigned *rates) { return both(d->id, "busy", rates, rates + 1); }
int nvmlDeviceGetTotalEnergyConsumption(Device *d, u64 *millijoules) { return number(d->id, "millijoules", millijoules); }
int nvmlDeviceGetPowerManagementLimit(Device *d, unsigned *mw) { return small(d->id, "power_limit", mw); }
int nvmlDeviceGetComputeMode(Device *d, unsigned *mode) { return small(d->id, "compute_mode", mode); }
int nvmlDeviceGetPersistenceMode(Device *d, unsigned *mode) { return small(d->id, "persistence", mode); }
int nvmlDeviceGetEccMode(Device *d, unsigned *now, unsigned *pending) { return both(d->id, "ecc", now, pending); }
int nvmlDeviceGetCurrPcieLinkWidth(Device *d, unsigned *lanes) { return small(d->id, "lanes", lanes); }
int nvmlDeviceGetMaxPcieLinkWidth(Device *d, unsigned *lanes) { return small(d->id, "max_lanes", lanes); }
int nvmlDeviceGetMaxPcieLinkGeneration(Device *d, unsigned *generation) { return small(d->id, "generation", generation); }
int nvmlDeviceGetCudaComputeCapability(Device *d, int *major, int *minor) {
    unsigned both_digits = 0;
    int result = small(d->id, "capability", &both_digits);
    *major = both_digits / 10;
    *minor = both_digits % 10;
    return result;
}
int nvmlDeviceGetMemoryInfo(Device *d, u64 *memory) { return number(d->id, "bytes", memory); }
int nvmlDeviceGetCpuAffinity(Device *d, unsigned words, u64 *masks) {
    memset(masks, 0, words * sizeof *masks);
    return number(d->id, "cores", masks); /* of the first 64 cores */
}

/* "0 xids 48 79": errors that the driver has had so far; each is told once to those that listen. */
static int listening, told[CARDS];
int nvmlEventSetCreate(void **set) { *set = &listening; memset(told, 0, sizeof told); return 0; }
int nvmlEventSetFree(void *set) { listening = 0; return 0; }
int nvmlDeviceRegisterEvents(Device *d, u64 types, void *set) { listening |= 1 << atoi(d->id); return 0; }
int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds) {
    for (int card = 0; card < CARDS; ++card) {
        char answer[128] = "", *word = answer;
        if (!(listening >> card & 1) || look(devices[card][SLICES].id, "xids", answer, sizeof answer)) continue;
        word = strtok(answer, " ");
        for (int skip = told[card]; word && skip; --skip) word = strtok(NULL, " ");
        if (!word) continue;
        ++told[card];
        *event = (Event){&devices[card][SLICES], 8, strtoull(word, NULL, 10), 0, 0};
        return 0;
    }
    return TIMED_OUT;
}

/* "0 processes 100 200": each holds 3 GB. */
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *processes) {
    char answer[256], *word;
    unsigned size = *count;
    int result = look(d->id, "processes", answer, sizeof answer);
    *count = 0;
    if (result) return result;
    for (word = strtok(answer, " "); word; word = strtok(NULL, " "), ++*count)
        if (processes && *count < size) processes[*count] = (Process){atoi(word), 3000000000ULL, 0, 0};
    return *count && !processes ? TOO_SMALL : 0;
}
