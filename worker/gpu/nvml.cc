#include "worker/gpu/nvml.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace milepost::worker {
namespace {

constexpr unsigned int kMostGpus = 1024;
constexpr int kMostXidsAtOnce = 64;
constexpr int64_t kKilobyte = 1000;  // NVML's unit of PCIe counters
constexpr unsigned int kEnabled = 1;

bool IsGone(int error) { return error == kNvmlGpuIsLost || error == kNvmlResetRequired; }

absl::Status CannotStart(int error, const char* text) {
  const std::string why = absl::StrCat("NVIDIA's driver cannot be used (", text, ")");
  switch (error) {
    case kNvmlDriverNotLoaded:
      return absl::UnavailableError(
          absl::StrCat(why, ": the kernel module is not loaded; try `modprobe nvidia`"));
    case kNvmlVersionMismatch:
      return absl::FailedPreconditionError(absl::StrCat(
          why,
          ": the driver's library was updated and the kernel still runs the old module; "
          "restart the host, or unload and load the nvidia modules"));
    case kNvmlNoPermission:
    case kNvmlOperatingSystem:
      return absl::PermissionDeniedError(absl::StrCat(
          why, ": this process may not open /dev/nvidiactl; in a container, pass the GPUs to it"));
    default:
      return absl::UnavailableError(why);
  }
}

// The first line of a small file; empty where there is none.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

const char* PathText(unsigned int level) {
  switch (level) {
    case 0:
      return "one board";
    case 10:
      return "PCIe switch";
    case 20:
      return "PCIe switches";
    case 30:
      return "host bridge";
    case 40:
      return "NUMA node";
    case 50:
      return "between NUMA nodes";
    default:
      return "";
  }
}

// Between two readings of an NVLink counter. Nullopt: one of them did not succeed, or the driver
// has not read it again, or it began anew.
std::optional<int64_t> BytesPerSecond(const NvmlFieldValue& before, const NvmlFieldValue& now) {
  const auto counted = [](const NvmlFieldValue& value) {
    return value.error == kNvmlSuccess && value.timestamp > 0 &&
           (value.type == kNvmlUnsignedLong || value.type == kNvmlUnsignedLongLong);
  };
  if (!counted(before) || !counted(now)) return std::nullopt;
  if (now.timestamp <= before.timestamp || now.value < before.value) return std::nullopt;
  return static_cast<int64_t>(1024e6 * static_cast<double>(now.value - before.value) /
                              static_cast<double>(now.timestamp - before.timestamp));
}

}  // namespace

std::vector<std::string> ThrottleReasons(unsigned long long mask) {
  static constexpr std::pair<unsigned long long, const char*> kReasons[] = {
      {0x2, "application clocks"}, {0x4, "power cap"},        {0x8, "hardware slowdown"},
      {0x10, "sync boost"},        {0x20, "hot (software)"},  {0x40, "hot (hardware)"},
      {0x80, "power brake"},       {0x100, "display clocks"},
  };
  std::vector<std::string> reasons;
  for (const auto& [bit, text] : kReasons) {
    if (mask & bit) reasons.emplace_back(text);
  }
  return reasons;
}

template <typename Value, typename Function, typename... Arguments>
std::optional<Value> Nvml::Ask(Function* function, Arguments... arguments) {
  if (function == nullptr) return std::nullopt;
  Value value{};
  const int error = function(arguments..., &value);
  if (IsGone(error)) lost_ = error;
  if (error != kNvmlSuccess) return std::nullopt;
  return value;
}

Nvml::Nvml(const NvmlFunctions& functions, std::string root)
    : f_(functions), root_(std::move(root)) {}

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open(const std::string& library) {
  MP_ASSIGN_OR_RETURN(const NvmlFunctions functions, LoadNvmlFunctions(library));
  return Open(functions);
}

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open(const NvmlFunctions& functions, std::string root) {
  const int error = functions.Init();
  if (error != kNvmlSuccess) return CannotStart(error, functions.ErrorString(error));
  std::unique_ptr<Nvml> nvml(new Nvml(functions, std::move(root)));
  nvml->ReadVersions();
  MP_RETURN_IF_ERROR(nvml->FindGpus());
  nvml->RegisterEvents();
  return nvml;
}

Nvml::~Nvml() {
  if (events_ != nullptr && f_.EventSetFree != nullptr) f_.EventSetFree(events_);
  f_.Shutdown();
}

void Nvml::ReadVersions() {
  char text[kNvmlVersionBytes] = {};
  if (f_.SystemGetDriverVersion != nullptr &&
      f_.SystemGetDriverVersion(text, sizeof text - 1) == kNvmlSuccess) {
    versions_.driver = text;
  }
  if (f_.SystemGetNvmlVersion != nullptr &&
      f_.SystemGetNvmlVersion(text, sizeof text - 1) == kNvmlSuccess) {
    versions_.nvml = text;
  }
  versions_.cuda = Ask<int>(f_.SystemGetCudaDriverVersion).value_or(0);
}

absl::Status Nvml::FindGpus() {
  unsigned int count = 0;
  if (const int error = f_.DeviceGetCount(&count); error != kNvmlSuccess) {
    return CannotStart(error, f_.ErrorString(error));
  }
  for (unsigned int i = 0; i < std::min(count, kMostGpus); ++i) {
    gpus_.push_back(Describe(static_cast<int>(i)));
  }
  return absl::OkStatus();
}

std::string Nvml::Explain(int gpu, int error) const {
  const std::string which = absl::StrCat("GPU ", gpu);
  if (error == kNvmlGpuIsLost) {
    return absl::StrCat(which, " has fallen off the bus: restart the host");
  }
  if (error == kNvmlResetRequired) {
    return absl::StrCat(which, " must be reset: nvidia-smi --gpu-reset -i ", gpu);
  }
  if (error == kNvmlNoPermission || error == kNvmlOperatingSystem) {
    return absl::StrCat(which, " may not be used by this process");
  }
  return absl::StrCat(which, " does not answer: ", f_.ErrorString(error));
}

Gpu Nvml::Describe(int index) {
  Gpu gpu = {.index = index};
  NvmlDevice& device = handles_.emplace_back(nullptr);
  nvlink_traffic_.emplace_back();
  int error = f_.DeviceGetHandleByIndex(static_cast<unsigned int>(index), &device);
  char text[std::max(kNvmlNameBytes, kNvmlUuidBytes)] = {};
  if (error == kNvmlSuccess) error = f_.DeviceGetUuid(device, text, kNvmlUuidBytes - 1);
  if (error != kNvmlSuccess) {
    device = nullptr;
    gpu.problem = Explain(index, error);
    return gpu;
  }
  gpu.uuid = text;
  gpu.model = f_.DeviceGetName(device, text, kNvmlNameBytes - 1) == kNvmlSuccess ? text : "GPU";
  lost_ = 0;
  if (const auto memory = Ask<NvmlMemory>(f_.DeviceGetMemoryInfo, device)) {
    gpu.memory_bytes = static_cast<int64_t>(memory->total);
  }
  int major = 0, minor = 0;
  if (f_.DeviceGetCudaComputeCapability != nullptr &&
      f_.DeviceGetCudaComputeCapability(device, &major, &minor) == kNvmlSuccess) {
    gpu.compute_capability = 10 * major + minor;
  }
  if (const auto on = Ask<unsigned int>(f_.DeviceGetPersistenceMode, device)) {
    gpu.persistent = *on == kEnabled;
  }
  ReadPlace(&gpu);
  unsigned int mig = 0, pending = 0;
  if (f_.DeviceGetMigMode != nullptr &&
      f_.DeviceGetMigMode(device, &mig, &pending) == kNvmlSuccess && mig == kEnabled) {
    gpu.problem = absl::StrCat("GPU ", index, " is divided (MIG), and a rank takes a whole one");
  }
  if (lost_ != 0) gpu.problem = Explain(index, lost_);
  return gpu;
}

// The kernel's address, and what the kernel knows of it.
void Nvml::ReadPlace(Gpu* gpu) {
  const auto pci = Ask<NvmlPciInfo>(f_.DeviceGetPciInfo, handles_[gpu->index]);
  if (!pci) return;
  gpu->pci_address = absl::StrFormat("%04x:%02x:%02x.0", pci->domain, pci->bus, pci->device);
  const std::string folder = absl::StrCat(root_, "/sys/bus/pci/devices/", gpu->pci_address);
  int node = -1;
  if (absl::SimpleAtoi(FirstLine(folder + "/numa_node"), &node) && node >= 0) {
    gpu->numa_node = node;
  }
  gpu->local_cores = FirstLine(folder + "/local_cpulist");
}

void Nvml::RegisterEvents() {
  if (f_.EventSetCreate == nullptr || f_.EventSetFree == nullptr || f_.EventSetWait == nullptr ||
      f_.DeviceRegisterEvents == nullptr || f_.EventSetCreate(&events_) != kNvmlSuccess) {
    events_ = nullptr;
    return;
  }
  for (NvmlDevice device : handles_) {
    // One that has no such events is merely silent.
    if (device != nullptr) f_.DeviceRegisterEvents(device, kNvmlEventXid, events_);
  }
}

std::vector<Nvml::Xid> Nvml::TakeXids() {
  std::vector<Xid> xids;
  if (events_ == nullptr) return xids;
  for (int i = 0; i < kMostXidsAtOnce; ++i) {
    NvmlEventData event = {};
    if (f_.EventSetWait(events_, &event, 0) != kNvmlSuccess) break;  // a timeout: no more
    const auto handle = std::find(handles_.begin(), handles_.end(), event.device);
    if (event.type != kNvmlEventXid || handle == handles_.end()) continue;
    xids.push_back({static_cast<int>(handle - handles_.begin()), static_cast<int>(event.data)});
  }
  return xids;
}

std::optional<int> Nvml::Temperature(NvmlDevice device) {
  if (const auto degrees =
          Ask<unsigned int>(f_.DeviceGetTemperature, device, kNvmlTemperatureGpu)) {
    return static_cast<int>(*degrees);
  }
  if (f_.DeviceGetTemperatureV == nullptr) return std::nullopt;
  NvmlTemperature temperature = {kNvmlTemperatureVersion, kNvmlTemperatureGpu, 0};
  if (f_.DeviceGetTemperatureV(device, &temperature) != kNvmlSuccess) return std::nullopt;
  return temperature.temperature;
}

void Nvml::MeasureClocks(NvmlDevice device, v1::DeviceFacts* facts) {
  if (const auto mhz = Ask<unsigned int>(f_.DeviceGetClockInfo, device, kNvmlClockSm)) {
    facts->set_sm_clock_mhz(static_cast<int32_t>(*mhz));
  }
  if (const auto mhz = Ask<unsigned int>(f_.DeviceGetMaxClockInfo, device, kNvmlClockSm)) {
    facts->set_most_sm_clock_mhz(static_cast<int32_t>(*mhz));
  }
  if (const auto mask = Ask<unsigned long long>(f_.DeviceGetCurrentClocksEventReasons, device)) {
    for (std::string& reason : ThrottleReasons(*mask)) {
      facts->add_throttling(std::move(reason));
    }
  }
}

void Nvml::MeasureLinks(NvmlDevice device, v1::DeviceFacts* facts) {
  if (const auto kb = Ask<unsigned int>(f_.DeviceGetPcieThroughput, device, kNvmlPcieRx)) {
    facts->set_pcie_read_bytes_per_second(kKilobyte * *kb);
  }
  if (const auto kb = Ask<unsigned int>(f_.DeviceGetPcieThroughput, device, kNvmlPcieTx)) {
    facts->set_pcie_write_bytes_per_second(kKilobyte * *kb);
  }
  for (unsigned int link = 0; link < kNvmlMostNvlinks; ++link) {
    const auto active = Ask<unsigned int>(f_.DeviceGetNvLinkState, device, link);
    if (!active) break;  // it has no more
    facts->set_nvlinks(static_cast<int32_t>(link) + 1);
    facts->set_nvlinks_active(facts->nvlinks_active() + (*active == kEnabled ? 1 : 0));
  }
}

// The driver counts; it samples the counters itself, and says when.
void Nvml::MeasureNvlinkTraffic(int gpu, v1::DeviceFacts* facts) {
  if (f_.DeviceGetFieldValues == nullptr || facts->nvlinks() == 0) return;
  NvmlFieldValue now[2] = {};
  now[0].field = kNvmlNvlinkDataTx;
  now[1].field = kNvmlNvlinkDataRx;
  for (NvmlFieldValue& value : now) value.scope = kNvmlAllLinks;
  const int error = f_.DeviceGetFieldValues(handles_[gpu], 2, now);
  if (IsGone(error)) lost_ = error;
  if (error != kNvmlSuccess) return;
  NvlinkTraffic& before = nvlink_traffic_[gpu];
  if (const auto rate = BytesPerSecond(std::exchange(before.sent, now[0]), now[0])) {
    facts->set_nvlink_transmit_bytes_per_second(*rate);
  }
  if (const auto rate = BytesPerSecond(std::exchange(before.received, now[1]), now[1])) {
    facts->set_nvlink_receive_bytes_per_second(*rate);
  }
}

v1::DeviceFacts Nvml::Measure(int gpu) {
  v1::DeviceFacts facts;
  facts.set_problem(gpus_[gpu].problem);
  const NvmlDevice device = handles_[gpu];
  if (device == nullptr) return facts;
  lost_ = 0;
  if (const auto memory = Ask<NvmlMemory>(f_.DeviceGetMemoryInfo, device)) {
    facts.set_memory_used_bytes(static_cast<int64_t>(memory->used));
  }
  if (const auto rates = Ask<NvmlUtilization>(f_.DeviceGetUtilizationRates, device)) {
    facts.set_utilization_percent(static_cast<int32_t>(rates->gpu));
  }
  if (const auto milliwatts = Ask<unsigned int>(f_.DeviceGetPowerUsage, device)) {
    facts.set_power_watts(*milliwatts * 1e-3);
  }
  if (const auto milliwatts = Ask<unsigned int>(f_.DeviceGetEnforcedPowerLimit, device)) {
    facts.set_power_limit_watts(*milliwatts * 1e-3);
  }
  if (const auto degrees = Temperature(device)) facts.set_temperature_celsius(*degrees);
  MeasureClocks(device, &facts);
  if (const auto errors = Ask<unsigned long long>(f_.DeviceGetTotalEccErrors, device,
                                                  kNvmlUncorrected, kNvmlVolatileEcc)) {
    facts.set_ecc_errors(static_cast<int64_t>(*errors));
  }
  MeasureLinks(device, &facts);
  MeasureNvlinkTraffic(gpu, &facts);
  if (lost_ != 0) {
    // What it said before it went is not how it does.
    facts.Clear();
    facts.set_problem(Explain(gpu, lost_));
  }
  return facts;
}

PeerLink Nvml::Link(int gpu, int other) {
  PeerLink link;
  const NvmlDevice a = handles_[gpu], b = handles_[other];
  if (a == nullptr || b == nullptr) return link;
  if (const auto level = Ask<unsigned int>(f_.DeviceGetTopologyCommonAncestor, a, b)) {
    link.path = PathText(*level);
  }
  if (const auto status = Ask<unsigned int>(f_.DeviceGetP2PStatus, a, b, kNvmlP2pRead)) {
    link.direct = *status == 0;
  }
  return link;
}

}  // namespace milepost::worker
