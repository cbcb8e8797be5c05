// FakeNvml under NVML's own names: a library that stands for libnvidia-ml.so.1, with two GPUs.
// MILEPOST_FAKE_NVML in the environment: "lost" (the second is), "mismatch" (nothing works).
#include <cstdlib>
#include <string>

#include "worker/gpu/testing/fake_nvml.h"

namespace {

using milepost::worker::FakeNvml;
using milepost::worker::NvmlDevice;
using milepost::worker::NvmlEventData;
using milepost::worker::NvmlEventSet;
using milepost::worker::NvmlFieldValue;
using milepost::worker::NvmlFunctions;
using milepost::worker::NvmlMemory;
using milepost::worker::NvmlPciInfo;
using milepost::worker::NvmlTemperature;
using milepost::worker::NvmlUtilization;

FakeNvml* MakeFake() {
  auto* fake = new FakeNvml;
  fake->gpus = {{.uuid = "GPU-fake-0", .bus = 0x3b}, {.uuid = "GPU-fake-1", .bus = 0xaf}};
  const char* mode = std::getenv("MILEPOST_FAKE_NVML");
  if (mode == nullptr) return fake;
  if (std::string(mode) == "lost") fake->gpus[1].error = milepost::worker::kNvmlGpuIsLost;
  if (std::string(mode) == "mismatch") fake->init_error = milepost::worker::kNvmlVersionMismatch;
  return fake;
}

const NvmlFunctions& Table() {
  static FakeNvml* const fake = MakeFake();
  static const NvmlFunctions table = fake->Functions();
  return table;
}

}  // namespace

#define FAKE_NVML(name, field, parameters, arguments) \
  int name parameters { return Table().field arguments; }

extern "C" {
FAKE_NVML(nvmlInit_v2, Init, (), ())
FAKE_NVML(nvmlShutdown, Shutdown, (), ())
const char* nvmlErrorString(int error) { return Table().ErrorString(error); }
FAKE_NVML(nvmlDeviceGetCount_v2, DeviceGetCount, (unsigned int* count), (count))
FAKE_NVML(nvmlDeviceGetHandleByIndex_v2, DeviceGetHandleByIndex, (unsigned int i, NvmlDevice* d),
          (i, d))
FAKE_NVML(nvmlDeviceGetName, DeviceGetName, (NvmlDevice d, char* s, unsigned int n), (d, s, n))
FAKE_NVML(nvmlDeviceGetUUID, DeviceGetUuid, (NvmlDevice d, char* s, unsigned int n), (d, s, n))
FAKE_NVML(nvmlSystemGetDriverVersion, SystemGetDriverVersion, (char* s, unsigned int n), (s, n))
FAKE_NVML(nvmlSystemGetNVMLVersion, SystemGetNvmlVersion, (char* s, unsigned int n), (s, n))
FAKE_NVML(nvmlSystemGetCudaDriverVersion_v2, SystemGetCudaDriverVersion, (int* v), (v))
FAKE_NVML(nvmlDeviceGetMemoryInfo, DeviceGetMemoryInfo, (NvmlDevice d, NvmlMemory* m), (d, m))
FAKE_NVML(nvmlDeviceGetCudaComputeCapability, DeviceGetCudaComputeCapability,
          (NvmlDevice d, int* major, int* minor), (d, major, minor))
FAKE_NVML(nvmlDeviceGetPciInfo_v3, DeviceGetPciInfo, (NvmlDevice d, NvmlPciInfo* p), (d, p))
FAKE_NVML(nvmlDeviceGetMigMode, DeviceGetMigMode, (NvmlDevice d, unsigned int* a, unsigned int* b),
          (d, a, b))
FAKE_NVML(nvmlDeviceGetPersistenceMode, DeviceGetPersistenceMode, (NvmlDevice d, unsigned int* on),
          (d, on))
FAKE_NVML(nvmlDeviceGetUtilizationRates, DeviceGetUtilizationRates,
          (NvmlDevice d, NvmlUtilization* u), (d, u))
FAKE_NVML(nvmlDeviceGetPowerUsage, DeviceGetPowerUsage, (NvmlDevice d, unsigned int* w), (d, w))
FAKE_NVML(nvmlDeviceGetEnforcedPowerLimit, DeviceGetEnforcedPowerLimit,
          (NvmlDevice d, unsigned int* w), (d, w))
FAKE_NVML(nvmlDeviceGetTemperature, DeviceGetTemperature,
          (NvmlDevice d, unsigned int sensor, unsigned int* t), (d, sensor, t))
FAKE_NVML(nvmlDeviceGetTemperatureV, DeviceGetTemperatureV, (NvmlDevice d, NvmlTemperature* t),
          (d, t))
FAKE_NVML(nvmlDeviceGetClockInfo, DeviceGetClockInfo,
          (NvmlDevice d, unsigned int type, unsigned int* mhz), (d, type, mhz))
FAKE_NVML(nvmlDeviceGetMaxClockInfo, DeviceGetMaxClockInfo,
          (NvmlDevice d, unsigned int type, unsigned int* mhz), (d, type, mhz))
FAKE_NVML(nvmlDeviceGetCurrentClocksThrottleReasons, DeviceGetCurrentClocksEventReasons,
          (NvmlDevice d, unsigned long long* mask), (d, mask))
FAKE_NVML(nvmlDeviceGetTotalEccErrors, DeviceGetTotalEccErrors,
          (NvmlDevice d, unsigned int type, unsigned int counter, unsigned long long* n),
          (d, type, counter, n))
FAKE_NVML(nvmlDeviceGetPcieThroughput, DeviceGetPcieThroughput,
          (NvmlDevice d, unsigned int counter, unsigned int* kb), (d, counter, kb))
FAKE_NVML(nvmlDeviceGetNvLinkState, DeviceGetNvLinkState,
          (NvmlDevice d, unsigned int link, unsigned int* active), (d, link, active))
FAKE_NVML(nvmlDeviceGetFieldValues, DeviceGetFieldValues,
          (NvmlDevice d, int count, NvmlFieldValue* values), (d, count, values))
FAKE_NVML(nvmlDeviceGetTopologyCommonAncestor, DeviceGetTopologyCommonAncestor,
          (NvmlDevice a, NvmlDevice b, unsigned int* level), (a, b, level))
FAKE_NVML(nvmlDeviceGetP2PStatus, DeviceGetP2PStatus,
          (NvmlDevice a, NvmlDevice b, unsigned int index, unsigned int* s), (a, b, index, s))
FAKE_NVML(nvmlEventSetCreate, EventSetCreate, (NvmlEventSet * set), (set))
FAKE_NVML(nvmlEventSetFree, EventSetFree, (NvmlEventSet set), (set))
FAKE_NVML(nvmlDeviceRegisterEvents, DeviceRegisterEvents,
          (NvmlDevice d, unsigned long long types, NvmlEventSet set), (d, types, set))
FAKE_NVML(nvmlEventSetWait_v2, EventSetWait,
          (NvmlEventSet set, NvmlEventData* event, unsigned int ms), (set, event, ms))
}
