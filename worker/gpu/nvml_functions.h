// The part of NVIDIA's management library (NVML) that Milepost calls. It is found at run time, so
// neither the toolkit nor the driver is needed to build. The declarations follow the NVML API
// reference (docs.nvidia.com/deploy/nvml-api). Sizes are the binary interface, and are checked
// below.
//
//   MP_ASSIGN_OR_RETURN(NvmlFunctions functions, LoadNvmlFunctions(kNvmlLibrary));
//   if (functions.DeviceGetPcieThroughput != nullptr) ...  // old drivers lack some functions
//
// Tests make their own table (worker/gpu/testing/fake_nvml.h).
#ifndef MILEPOST_WORKER_GPU_NVML_FUNCTIONS_H_
#define MILEPOST_WORKER_GPU_NVML_FUNCTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace milepost::worker {

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

// nvmlReturn_t. Messages show values that are not listed here as numbers.
enum NvmlReturn : int {
  kNvmlSuccess = 0,
  kNvmlUninitialized = 1,
  kNvmlInvalidArgument = 2,
  kNvmlNotSupported = 3,
  kNvmlNoPermission = 4,
  kNvmlNotFound = 6,
  kNvmlDriverNotLoaded = 9,
  kNvmlTimeout = 10,
  kNvmlFunctionNotFound = 13,
  kNvmlGpuIsLost = 15,
  kNvmlResetRequired = 16,
  kNvmlOperatingSystem = 17,
  kNvmlVersionMismatch = 18,
  kNvmlUnknown = 999,
};

using NvmlDevice = struct NvmlDeviceHandle*;
using NvmlEventSet = struct NvmlEventSetHandle*;

// nvmlPciInfo_t of nvmlDeviceGetPciInfo_v3.
struct NvmlPciInfo {
  char legacy_bus_id[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int device_and_vendor;
  unsigned int subsystem;
  char bus_id[32];  // "00000000:3B:00.0"
};
static_assert(sizeof(NvmlPciInfo) == 68);

// nvmlMemory_t, version 1: it has no version field and is in every driver. Bytes.
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
static_assert(sizeof(NvmlMemory) == 24);

// nvmlUtilization_t: percent of the last sample period, which lasts up to a second.
struct NvmlUtilization {
  unsigned int gpu;
  unsigned int memory;
};

// nvmlEventData_t of nvmlEventSetWait_v2; version 1 lacks the last two fields.
struct NvmlEventData {
  NvmlDevice device;
  unsigned long long type;
  unsigned long long data;  // the XID, in an XID event
  unsigned int gpu_instance;
  unsigned int compute_instance;
};
static_assert(sizeof(NvmlEventData) == 32);

// nvmlTemperature_v1_t. `version` must be kNvmlTemperatureVersion.
struct NvmlTemperature {
  unsigned int version;
  unsigned int sensor;
  int temperature;
};
inline constexpr unsigned int kNvmlTemperatureVersion = sizeof(NvmlTemperature) | (1u << 24);

// nvmlFieldValue_t.
struct NvmlFieldValue {
  unsigned int field;
  unsigned int scope;   // for NVLink counters: the link, or kNvmlAllLinks
  long long timestamp;  // microseconds since 1970
  long long latency;
  int type;                  // type of `value`: kNvmlUnsignedLongLong, ...
  int error;                 // `value` is valid only with kNvmlSuccess
  unsigned long long value;  // a union in NVML
};
static_assert(sizeof(NvmlFieldValue) == 40);

inline constexpr unsigned int kNvmlNvlinkDataTx =
    138;  // field: KiB sent so far, unsigned long long
inline constexpr unsigned int kNvmlNvlinkDataRx = 139;  // field: KiB received so far
inline constexpr unsigned int kNvmlAllLinks = 0xffffffff;
inline constexpr int kNvmlUnsignedLong = 2;  // value types
inline constexpr int kNvmlUnsignedLongLong = 3;
inline constexpr unsigned int kNvmlTemperatureGpu = 0;  // sensor
inline constexpr unsigned int kNvmlClockSm = 1;         // clock type
inline constexpr unsigned int kNvmlUncorrected = 1;     // memory error type
inline constexpr unsigned int kNvmlVolatileEcc = 0;     // counter type: since the driver was loaded
inline constexpr unsigned int kNvmlPcieTx = 0;          // PCIe counter: sent by the GPU, KB/s
inline constexpr unsigned int kNvmlPcieRx = 1;          // PCIe counter: received by the GPU, KB/s
inline constexpr unsigned int kNvmlP2pRead = 0;         // P2P capability
inline constexpr unsigned int kNvmlMostNvlinks = 18;    // NVML_NVLINK_MAX_LINKS
inline constexpr unsigned long long kNvmlEventXid = 8;  // event type: XidCriticalError
inline constexpr unsigned int kNvmlNameBytes = 96;      // NVML_DEVICE_NAME_V2_BUFFER_SIZE
inline constexpr unsigned int kNvmlUuidBytes = 96;      // NVML_DEVICE_UUID_V2_BUFFER_SIZE
inline constexpr unsigned int kNvmlVersionBytes = 80;   // NVML_SYSTEM_*_VERSION_BUFFER_SIZE

// Members have the names of NVML's functions, without "nvml" and the version. nullptr: the driver's
// library lacks the function. Init to DeviceGetUuid are always set.
struct NvmlFunctions {
  int (*Init)() = nullptr;
  int (*Shutdown)() = nullptr;
  const char* (*ErrorString)(int) = nullptr;
  int (*DeviceGetCount)(unsigned int*) = nullptr;
  int (*DeviceGetHandleByIndex)(unsigned int, NvmlDevice*) = nullptr;
  int (*DeviceGetName)(NvmlDevice, char*, unsigned int) = nullptr;
  int (*DeviceGetUuid)(NvmlDevice, char*, unsigned int) = nullptr;

  int (*SystemGetDriverVersion)(char*, unsigned int) = nullptr;
  int (*SystemGetNvmlVersion)(char*, unsigned int) = nullptr;
  int (*SystemGetCudaDriverVersion)(int*) = nullptr;  // 13000: 13.0
  int (*DeviceGetMemoryInfo)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*DeviceGetCudaComputeCapability)(NvmlDevice, int* major, int* minor) = nullptr;
  int (*DeviceGetPciInfo)(NvmlDevice, NvmlPciInfo*) = nullptr;
  int (*DeviceGetMigMode)(NvmlDevice, unsigned int* now, unsigned int* pending) = nullptr;
  int (*DeviceGetPersistenceMode)(NvmlDevice, unsigned int*) = nullptr;
  int (*DeviceGetUtilizationRates)(NvmlDevice, NvmlUtilization*) = nullptr;
  int (*DeviceGetPowerUsage)(NvmlDevice, unsigned int* milliwatts) = nullptr;
  int (*DeviceGetEnforcedPowerLimit)(NvmlDevice, unsigned int* milliwatts) = nullptr;
  int (*DeviceGetTemperature)(NvmlDevice, unsigned int sensor, unsigned int*) = nullptr;
  int (*DeviceGetTemperatureV)(NvmlDevice, NvmlTemperature*) = nullptr;  // if the one above fails
  int (*DeviceGetClockInfo)(NvmlDevice, unsigned int type, unsigned int* mhz) = nullptr;
  int (*DeviceGetMaxClockInfo)(NvmlDevice, unsigned int type, unsigned int* mhz) = nullptr;
  // Found under its new name or its old one.
  int (*DeviceGetCurrentClocksEventReasons)(NvmlDevice, unsigned long long*) = nullptr;
  int (*DeviceGetTotalEccErrors)(NvmlDevice, unsigned int type, unsigned int counter,
                                 unsigned long long*) = nullptr;
  // Measures for 20 ms.
  int (*DeviceGetPcieThroughput)(NvmlDevice, unsigned int counter, unsigned int* kb) = nullptr;
  int (*DeviceGetNvLinkState)(NvmlDevice, unsigned int link, unsigned int* active) = nullptr;
  // Each value has its own answer.
  int (*DeviceGetFieldValues)(NvmlDevice, int count, NvmlFieldValue*) = nullptr;
  int (*DeviceGetTopologyCommonAncestor)(NvmlDevice, NvmlDevice, unsigned int*) = nullptr;
  int (*DeviceGetP2PStatus)(NvmlDevice, NvmlDevice, unsigned int, unsigned int*) = nullptr;
  int (*EventSetCreate)(NvmlEventSet*) = nullptr;
  int (*EventSetFree)(NvmlEventSet) = nullptr;
  int (*DeviceRegisterEvents)(NvmlDevice, unsigned long long types, NvmlEventSet) = nullptr;
  int (*EventSetWait)(NvmlEventSet, NvmlEventData*, unsigned int milliseconds) = nullptr;
};

// The library stays loaded as long as the process lives. NOT_FOUND: the library is not on this
// host, so there is no driver. FAILED_PRECONDITION: it lacks a function that every NVML has.
absl::StatusOr<NvmlFunctions> LoadNvmlFunctions(const std::string& library);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_GPU_NVML_FUNCTIONS_H_
