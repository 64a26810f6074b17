/* A stand-in for the NVIDIA driver's libnvidia-ml.so.1. Its state is the file that FAKE_NVML names: lines of
   "key value", read at each call. `error` is the NVML code that every call about a GPU returns. `mig` is the
   number of MIG devices of each GPU: device N of GPU 1 has the handle 100 + N and the GPU instance N. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned int u32;
typedef unsigned long long u64;

static long long get(const char *key, long long otherwise) {
    const char *path = getenv("FAKE_NVML");
    char name[64];
    long long value;
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return otherwise;
    while (fscanf(file, "%63s %lld", name, &value) == 2)
        if (!strcmp(name, key)) {
            fclose(file);
            return value;
        }
    fclose(file);
    return otherwise;
}

#define CHECK() do { int code = (int)get("error", 0); if (code) return code; } while (0)
#define IS_MIG(d) ((size_t)(d) >= 100)
#define NO_MIG(d) do { if (IS_MIG(d)) return 3; } while (0)
#define NUMBER(name, type, key, otherwise) \
    int name(void *d, type *v) { CHECK(); NO_MIG(d); *v = (type)get(key, otherwise); return 0; }
#define NUMBER_OF(name, key, otherwise) \
    int name(void *d, int which, u32 *v) { \
        (void)which; CHECK(); NO_MIG(d); *v = (u32)get(key, otherwise); return 0; \
    }

int nvmlInit_v2(void) { return (int)get("init", 9); }
int nvmlInitWithFlags(u32 flags) { (void)flags; return (int)get("init", 9); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "stand-in"; }
int nvmlSystemGetDriverVersion(char *b, u32 n) { snprintf(b, n, "%lld.91.07", get("driver", 595)); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = (int)get("cuda", 13020); return 0; }
int nvmlDeviceGetCount_v2(u32 *n) { *n = (u32)get("count", 1); return 0; }
int nvmlDeviceGetHandleByIndex_v2(u32 i, void **d) {
    if (i >= (u32)get("count", 1)) return 2;
    *d = (void *)(size_t)(i + 1);
    return 0;
}
int nvmlDeviceGetName(void *d, char *b, u32 n) { (void)d; CHECK(); snprintf(b, n, "NVIDIA H200"); return 0; }
int nvmlDeviceGetUUID(void *d, char *b, u32 n) {
    snprintf(b, n, "%s-00000000-0000-0000-0000-%012zu", IS_MIG(d) ? "MIG" : "GPU", (size_t)d);
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *d, u32 *n) { (void)d; *n = get("mig", 0) ? 7 : 0; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *d, u32 i, void **mig) {
    if (i >= (u32)get("mig", 0)) return 6;
    *mig = (void *)((size_t)d * 100 + i + 1);
    return 0;
}
int nvmlDeviceGetGpuInstanceId(void *d, u32 *id) {
    if (!IS_MIG(d)) return 3;
    *id = (u32)((size_t)d % 100);
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) {
    (void)d; CHECK();
    *major = (int)get("capability", 90) / 10;
    *minor = (int)get("capability", 90) % 10;
    return 0;
}
struct memory { u64 total, free, used; };
int nvmlDeviceGetMemoryInfo(void *d, struct memory *m) {
    CHECK();
    m->total = (IS_MIG(d) ? 16384ULL : 143771ULL) << 20;
    m->used = (u64)get("used_mib", 1000) << 20;
    m->free = m->total - m->used;
    return 0;
}
struct utilization { u32 gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *d, struct utilization *u) {
    CHECK();
    if (IS_MIG(d) || get("mig", 0)) return 3;
    u->gpu = (u32)get("utilization", 97);
    u->memory = (u32)get("memory_utilization", 40);
    return 0;
}
/* The cycles of a MIG device since the sample before: `mig_utilization`; a GPU without that has no samples. */
struct sample { u32 gpu_instance; };
struct metric { u32 id; int code; double value; const char *names[3]; };
struct metrics { u32 version, count; struct sample *from, *to; struct metric metrics[1]; };
int nvmlGpmSampleAlloc(struct sample **s) { *s = calloc(1, sizeof **s); return 0; }
int nvmlGpmSampleFree(struct sample *s) { free(s); return 0; }
int nvmlGpmMigSampleGet(void *d, u32 instance, struct sample *s) {
    CHECK(); NO_MIG(d);
    if (get("mig_utilization", -1) < 0) return 3;
    s->gpu_instance = instance;
    return 0;
}
int nvmlGpmMetricsGet(struct metrics *m) {
    CHECK();
    if (m->version != 1 || m->count != 1 || m->metrics[0].id != 1) return 2;
    if (m->from == m->to || m->from->gpu_instance != m->to->gpu_instance) return 2;
    m->metrics[0].value = (double)get("mig_utilization", 0) + m->to->gpu_instance;
    m->metrics[0].code = 0;
    return 0;
}
NUMBER_OF(nvmlDeviceGetTemperature, "temperature", 40)
NUMBER_OF(nvmlDeviceGetClockInfo, "clock", 1980)
NUMBER_OF(nvmlDeviceGetMaxClockInfo, "max_clock", 1980)
NUMBER(nvmlDeviceGetPowerUsage, u32, "milliwatts", 400000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, u32, "limit_milliwatts", 700000)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, "millijoules", 5000)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, "clock_reasons", 0)
int nvmlDeviceGetTotalEccErrors(void *d, int type, int counter, u64 *c) {
    CHECK();
    if (get("mig", 0) && IS_MIG(d) != (type == 1 && counter == 0)) return 3;
    *c = (u64)get(type == 1 ? (counter ? "double_bit_ever" : "double_bit") : "single_bit", 0);
    return 0;
}
int nvmlDeviceGetRemappedRows(void *d, u32 *cor, u32 *unc, u32 *pending, u32 *failed) {
    CHECK(); NO_MIG(d);
    *cor = (u32)get("remapped_correctable", 0);
    *unc = (u32)get("remapped_uncorrectable", 0);
    *pending = (u32)get("remap_pending", 0);
    *failed = (u32)get("remap_failed", 0);
    return 0;
}
int nvmlEventSetCreate(void **set) { *set = (void *)1; return 0; }
int nvmlDeviceRegisterEvents(void *d, u64 types, void *set) { (void)types; (void)set; NO_MIG(d); return 0; }
struct event { void *device; u64 type, data; u32 gpu_instance, compute_instance; };
/* An XID is reported once for every new value of `xid_number`. */
int nvmlEventSetWait_v2(void *set, struct event *e, u32 timeout) {
    static long long seen = 0;
    long long number = get("xid_number", 0);
    (void)set; (void)timeout; CHECK();
    if (number == seen) return 10;
    seen = number;
    memset(e, 0, sizeof *e);
    e->type = 8;
    e->data = (u64)get("xid", 0);
    e->gpu_instance = (u32)get("xid_instance", 0xFFFFFFFF);
    return number ? 0 : 10;
}
