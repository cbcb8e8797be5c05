#include "worker/gpu/testing/fake_nvml.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace milepost::worker {
namespace {

FakeNvml* current = nullptr;

// Handles are indices from 1 on.
int IndexOf(NvmlDevice device) { return static_cast<int>(reinterpret_cast<uintptr_t>(device)) - 1; }

NvmlDevice HandleOf(int index) {
  return reinterpret_cast<NvmlDevice>(static_cast<uintptr_t>(index) + 1);
}

// Runs `get` on the GPU, unless it fails.
template <typename Get>
int With(NvmlDevice device, const Get& get) {
  std::lock_guard lock(current->mutex);
  const auto index = static_cast<size_t>(IndexOf(device));
  if (index >= current->gpus.size()) return kNvmlInvalidArgument;
  const FakeGpu& gpu = current->gpus[index];
  if (gpu.error != kNvmlSuccess) return gpu.error;
  get(gpu);
  return kNvmlSuccess;
}

// A getter of one field.
template <typename Out, typename Field>
int GetField(NvmlDevice device, Field FakeGpu::*field, Out* out) {
  return With(device, [&](const FakeGpu& gpu) { *out = static_cast<Out>(gpu.*field); });
}

int CopyText(const std::string& text, char* out, unsigned int size) {
  if (text.size() + 1 > size) return 7;  // INSUFFICIENT_SIZE
  std::memcpy(out, text.c_str(), text.size() + 1);
  return kNvmlSuccess;
}

const char* ErrorString(int error) {
  switch (error) {
    case kNvmlDriverNotLoaded:
      return "Driver Not Loaded";
    case kNvmlVersionMismatch:
      return "Driver/library version mismatch";
    case kNvmlGpuIsLost:
      return "GPU is lost";
    default:
      return "Unknown Error";
  }
}

int GetHandle(unsigned int index, NvmlDevice* device) {
  std::lock_guard lock(current->mutex);
  if (index >= current->gpus.size()) return kNvmlInvalidArgument;
  if (current->gpus[index].no_handle) return current->gpus[index].error;
  *device = HandleOf(static_cast<int>(index));
  return kNvmlSuccess;
}

int GetName(NvmlDevice device, char* out, unsigned int size) {
  return With(device, [&](const FakeGpu& gpu) { CopyText(gpu.model, out, size); });
}

int GetUuid(NvmlDevice device, char* out, unsigned int size) {
  return With(device, [&](const FakeGpu& gpu) { CopyText(gpu.uuid, out, size); });
}

int GetFieldValues(NvmlDevice device, int count, NvmlFieldValue* values) {
  return With(device, [&](const FakeGpu& gpu) {
    for (NvmlFieldValue* value = values; value != values + count; ++value) {
      const bool sent = value->field == kNvmlNvlinkDataTx;
      value->error = (sent || value->field == kNvmlNvlinkDataRx) && value->scope == kNvmlAllLinks
                         ? kNvmlSuccess
                         : kNvmlNotSupported;
      value->type = kNvmlUnsignedLongLong;
      value->timestamp = gpu.counted_at;
      value->value = sent ? gpu.sent_kib : gpu.received_kib;
    }
  });
}

int GetNvLinkState(NvmlDevice device, unsigned int link, unsigned int* active) {
  unsigned int links = 0;
  const int error = With(device, [&](const FakeGpu& gpu) {
    links = gpu.nvlinks;
    *active = link + gpu.broken_nvlinks < gpu.nvlinks ? 1 : 0;
  });
  return error == kNvmlSuccess && link >= links ? int{kNvmlNotSupported} : error;
}

int WaitForEvent(NvmlEventSet, NvmlEventData* event, unsigned int) {
  std::lock_guard lock(current->mutex);
  if (current->xids.empty()) return kNvmlTimeout;
  const auto [gpu, code] = current->xids.front();
  current->xids.pop_front();
  *event = {HandleOf(gpu), kNvmlEventXid, static_cast<unsigned long long>(code), ~0u, ~0u};
  return kNvmlSuccess;
}

void AddSystem(NvmlFunctions* f) {
  f->Init = [] {
    std::lock_guard lock(current->mutex);
    if (current->init_error == kNvmlSuccess) ++current->opened;
    return current->init_error;
  };
  f->Shutdown = [] {
    std::lock_guard lock(current->mutex);
    --current->opened;
    return int{kNvmlSuccess};
  };
  f->ErrorString = ErrorString;
  f->DeviceGetCount = [](unsigned int* count) {
    std::lock_guard lock(current->mutex);
    *count = static_cast<unsigned int>(current->gpus.size());
    return int{kNvmlSuccess};
  };
  f->SystemGetDriverVersion = [](char* out, unsigned int size) {
    return CopyText("580.65.06", out, size);
  };
  f->SystemGetNvmlVersion = [](char* out, unsigned int size) {
    return CopyText("13.580.65.06", out, size);
  };
  f->SystemGetCudaDriverVersion = [](int* version) {
    *version = 13000;
    return int{kNvmlSuccess};
  };
}

void AddEvents(NvmlFunctions* f) {
  f->EventSetCreate = [](NvmlEventSet* set) {
    *set = reinterpret_cast<NvmlEventSet>(uintptr_t{1});
    return int{kNvmlSuccess};
  };
  f->EventSetFree = [](NvmlEventSet) { return int{kNvmlSuccess}; };
  f->DeviceRegisterEvents = [](NvmlDevice, unsigned long long types, NvmlEventSet) {
    return types == kNvmlEventXid ? int{kNvmlSuccess} : int{kNvmlInvalidArgument};
  };
  f->EventSetWait = WaitForEvent;
}

void AddIdentity(NvmlFunctions* f) {
  f->DeviceGetHandleByIndex = GetHandle;
  f->DeviceGetName = GetName;
  f->DeviceGetUuid = GetUuid;
  f->DeviceGetCudaComputeCapability = [](NvmlDevice device, int* major, int* minor) {
    return With(device, [&](const FakeGpu& gpu) {
      *major = gpu.major;
      *minor = gpu.minor;
    });
  };
  f->DeviceGetPciInfo = [](NvmlDevice device, NvmlPciInfo* info) {
    return With(device, [&](const FakeGpu& gpu) { info->bus = gpu.bus; });
  };
  f->DeviceGetMigMode = [](NvmlDevice device, unsigned int* now, unsigned int* pending) {
    *pending = 0;
    return GetField(device, &FakeGpu::mig, now);
  };
  f->DeviceGetPersistenceMode = [](NvmlDevice device, unsigned int* on) {
    return With(device, [&](const FakeGpu&) { *on = 1; });
  };
  f->DeviceGetTopologyCommonAncestor = [](NvmlDevice device, NvmlDevice, unsigned int* level) {
    return With(device, [&](const FakeGpu&) { *level = 40; });
  };
  f->DeviceGetP2PStatus = [](NvmlDevice device, NvmlDevice, unsigned int, unsigned int* status) {
    return With(device, [&](const FakeGpu& gpu) { *status = gpu.nvlinks > 0 ? 0 : 5; });
  };
}

void AddMeasurements(NvmlFunctions* f) {
  f->DeviceGetMemoryInfo = [](NvmlDevice device, NvmlMemory* memory) {
    return With(device, [&](const FakeGpu& gpu) {
      *memory = {gpu.memory, gpu.memory - gpu.used, gpu.used};
    });
  };
  f->DeviceGetUtilizationRates = [](NvmlDevice device, NvmlUtilization* rates) {
    return GetField(device, &FakeGpu::utilization, &rates->gpu);
  };
  f->DeviceGetPowerUsage = [](NvmlDevice device, unsigned int* milliwatts) {
    return GetField(device, &FakeGpu::milliwatts, milliwatts);
  };
  f->DeviceGetEnforcedPowerLimit = [](NvmlDevice device, unsigned int* milliwatts) {
    return With(device, [&](const FakeGpu&) { *milliwatts = 700'000; });
  };
  f->DeviceGetTemperature = [](NvmlDevice device, unsigned int, unsigned int* celsius) {
    return GetField(device, &FakeGpu::celsius, celsius);
  };
  f->DeviceGetTemperatureV = [](NvmlDevice device, NvmlTemperature* temperature) {
    if (temperature->version != 0x100000c) return int{kNvmlInvalidArgument};
    return GetField(device, &FakeGpu::celsius, &temperature->temperature);
  };
  f->DeviceGetClockInfo = [](NvmlDevice device, unsigned int, unsigned int* mhz) {
    return GetField(device, &FakeGpu::sm_mhz, mhz);
  };
  f->DeviceGetMaxClockInfo = [](NvmlDevice device, unsigned int, unsigned int* mhz) {
    return With(device, [&](const FakeGpu&) { *mhz = 1980; });
  };
  f->DeviceGetCurrentClocksEventReasons = [](NvmlDevice device, unsigned long long* mask) {
    return GetField(device, &FakeGpu::throttle, mask);
  };
  f->DeviceGetTotalEccErrors = [](NvmlDevice device, unsigned int type, unsigned int counter,
                                  unsigned long long* errors) {
    if (type != 1 || counter != 0) return int{kNvmlInvalidArgument};
    return GetField(device, &FakeGpu::ecc, errors);
  };
  f->DeviceGetPcieThroughput = [](NvmlDevice device, unsigned int counter, unsigned int* kb) {
    return With(device, [&](const FakeGpu&) { *kb = counter == 0 ? 2'000 : 3'000; });
  };
  f->DeviceGetNvLinkState = GetNvLinkState;
  f->DeviceGetFieldValues = GetFieldValues;
}

}  // namespace

FakeNvml::FakeNvml() {
  MP_CHECK(current == nullptr) << "one FakeNvml at a time";
  current = this;
}

FakeNvml::~FakeNvml() { current = nullptr; }

NvmlFunctions FakeNvml::Functions() {
  NvmlFunctions f;
  AddSystem(&f);
  AddIdentity(&f);
  AddMeasurements(&f);
  AddEvents(&f);
  return f;
}

}  // namespace milepost::worker
