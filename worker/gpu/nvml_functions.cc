#include "worker/gpu/nvml_functions.h"

#include <dlfcn.h>

#include <initializer_list>

#include "absl/strings/str_cat.h"

namespace milepost::worker {
namespace {

// The first of `names` that the library has.
template <typename Function>
void Find(void* library, std::initializer_list<const char*> names, Function** function) {
  for (const char* name : names) {
    if (*function != nullptr) return;
    *function = reinterpret_cast<Function*>(dlsym(library, name));
  }
}

void FindDeviceFunctions(void* library, NvmlFunctions* f) {
  Find(library, {"nvmlDeviceGetMemoryInfo"}, &f->DeviceGetMemoryInfo);
  Find(library, {"nvmlDeviceGetCudaComputeCapability"}, &f->DeviceGetCudaComputeCapability);
  Find(library, {"nvmlDeviceGetPciInfo_v3"}, &f->DeviceGetPciInfo);
  Find(library, {"nvmlDeviceGetMigMode"}, &f->DeviceGetMigMode);
  Find(library, {"nvmlDeviceGetPersistenceMode"}, &f->DeviceGetPersistenceMode);
  Find(library, {"nvmlDeviceGetUtilizationRates"}, &f->DeviceGetUtilizationRates);
  Find(library, {"nvmlDeviceGetPowerUsage"}, &f->DeviceGetPowerUsage);
  Find(library, {"nvmlDeviceGetEnforcedPowerLimit"}, &f->DeviceGetEnforcedPowerLimit);
  Find(library, {"nvmlDeviceGetTemperature"}, &f->DeviceGetTemperature);
  Find(library, {"nvmlDeviceGetTemperatureV"}, &f->DeviceGetTemperatureV);
  Find(library, {"nvmlDeviceGetClockInfo"}, &f->DeviceGetClockInfo);
  Find(library, {"nvmlDeviceGetMaxClockInfo"}, &f->DeviceGetMaxClockInfo);
  Find(library,
       {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"},
       &f->DeviceGetCurrentClocksEventReasons);
  Find(library, {"nvmlDeviceGetTotalEccErrors"}, &f->DeviceGetTotalEccErrors);
  Find(library, {"nvmlDeviceGetPcieThroughput"}, &f->DeviceGetPcieThroughput);
  Find(library, {"nvmlDeviceGetNvLinkState"}, &f->DeviceGetNvLinkState);
  Find(library, {"nvmlDeviceGetFieldValues"}, &f->DeviceGetFieldValues);
  Find(library, {"nvmlDeviceGetTopologyCommonAncestor"}, &f->DeviceGetTopologyCommonAncestor);
  Find(library, {"nvmlDeviceGetP2PStatus"}, &f->DeviceGetP2PStatus);
  Find(library, {"nvmlDeviceRegisterEvents"}, &f->DeviceRegisterEvents);
}

}  // namespace

absl::StatusOr<NvmlFunctions> LoadNvmlFunctions(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return absl::NotFoundError(
        absl::StrCat("no NVIDIA driver on this host: ", why == nullptr ? library : why,
                     "; install NVIDIA's driver, or choose the CPU (--device cpu; in a job spec "
                     "resources.device: cpu)"));
  }
  NvmlFunctions f;
  Find(handle, {"nvmlInit_v2"}, &f.Init);
  Find(handle, {"nvmlShutdown"}, &f.Shutdown);
  Find(handle, {"nvmlErrorString"}, &f.ErrorString);
  Find(handle, {"nvmlDeviceGetCount_v2"}, &f.DeviceGetCount);
  Find(handle, {"nvmlDeviceGetHandleByIndex_v2"}, &f.DeviceGetHandleByIndex);
  Find(handle, {"nvmlDeviceGetName"}, &f.DeviceGetName);
  Find(handle, {"nvmlDeviceGetUUID"}, &f.DeviceGetUuid);
  if (f.Init == nullptr || f.Shutdown == nullptr || f.ErrorString == nullptr ||
      f.DeviceGetCount == nullptr || f.DeviceGetHandleByIndex == nullptr ||
      f.DeviceGetName == nullptr || f.DeviceGetUuid == nullptr) {
    dlclose(handle);
    return absl::FailedPreconditionError(
        absl::StrCat(library, " lacks functions that every NVML has: install NVIDIA's driver"));
  }
  Find(handle, {"nvmlSystemGetDriverVersion"}, &f.SystemGetDriverVersion);
  Find(handle, {"nvmlSystemGetNVMLVersion"}, &f.SystemGetNvmlVersion);
  Find(handle, {"nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"},
       &f.SystemGetCudaDriverVersion);
  Find(handle, {"nvmlEventSetCreate"}, &f.EventSetCreate);
  Find(handle, {"nvmlEventSetFree"}, &f.EventSetFree);
  Find(handle, {"nvmlEventSetWait_v2", "nvmlEventSetWait"}, &f.EventSetWait);
  FindDeviceFunctions(handle, &f);
  return f;
}

}  // namespace milepost::worker
