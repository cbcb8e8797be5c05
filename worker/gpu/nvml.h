// What NVIDIA's management library (NVML) reports about this host's GPUs: what they are, how they
// do, and how they are connected.
//
//   MP_ASSIGN_OR_RETURN(std::unique_ptr<Nvml> nvml, Nvml::Open());
//   for (const Gpu& gpu : nvml->gpus()) {
//     v1::DeviceFacts facts = nvml->Measure(gpu.index);
//     if (!facts.problem().empty()) ...
//   }
//
// Calls go into the driver. They take milliseconds, and have been seen to hang on a broken GPU. So
// keep them off threads that others wait for. Use one thread at a time. NVML does not touch CUDA:
// it makes no context and takes no GPU memory.
#ifndef MILEPOST_WORKER_GPU_NVML_H_
#define MILEPOST_WORKER_GPU_NVML_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "milepost/v1/worker.pb.h"
#include "worker/gpu/nvml_functions.h"

namespace milepost::worker {

struct DriverVersions {
  std::string driver;  // "580.65.06"; empty: not reported
  std::string nvml;
  int cuda = 0;  // the newest CUDA that the driver runs; 13000 is 13.0
};

// The facts about one GPU that do not change.
struct Gpu {
  int index = 0;        // NVML's index: by PCI address
  std::string problem;  // why it cannot be used; the other fields may then be empty
  std::string model;    // "NVIDIA H200"
  std::string uuid;     // "GPU-...": what CUDA_VISIBLE_DEVICES takes
  int64_t memory_bytes = 0;
  int compute_capability = 0;      // 90 is 9.0
  std::string pci_address;         // "0000:3b:00.0", as under /sys/bus/pci/devices
  std::optional<int> numa_node;    // the node that it is attached to
  std::string local_cores;         // the cores of that node: "0-31,64-95"; empty: not known
  std::optional<bool> persistent;  // the driver stays loaded while nobody uses it
};

// How two GPUs reach each other.
struct PeerLink {
  // "PCIe switch", "PCIe switches", "host bridge", "NUMA node", "between NUMA nodes". Empty: not
  // reported.
  std::string path;
  std::optional<bool> direct;  // one GPU may read the other's memory
};

class Nvml {
 public:
  // NOT_FOUND: no driver is installed. UNAVAILABLE: it is not loaded. FAILED_PRECONDITION: the
  // library and the kernel's driver do not match. PERMISSION_DENIED: access is denied. Each error
  // says what to do.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open(const std::string& library = kNvmlLibrary);
  // `root` is put before /sys, for tests.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open(const NvmlFunctions& functions,
                                                    std::string root = "");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const DriverVersions& versions() const { return versions_; }
  // By index: gpus()[i].index == i.
  const std::vector<Gpu>& gpus() const { return gpus_; }

  // Returns the GPU's present facts; those that it does not report are absent. `problem` is set
  // when the GPU is lost, or could not be used from the start. The caller fills in slot, time and
  // last_xid. The traffic of NVLinks counts from the call before, so the first call has none.
  v1::DeviceFacts Measure(int gpu);

  struct Xid {
    int gpu = 0;
    int code = 0;
  };
  // Returns the driver's error reports since the last call, at most 64. Does not wait.
  std::vector<Xid> TakeXids();

  PeerLink Link(int gpu, int other);

 private:
  Nvml(const NvmlFunctions& functions, std::string root);
  void ReadVersions();
  absl::Status FindGpus();
  Gpu Describe(int index);
  void ReadPlace(Gpu* gpu);
  void RegisterEvents();
  std::string Explain(int gpu, int error) const;
  void MeasureClocks(NvmlDevice device, v1::DeviceFacts* facts);
  void MeasureLinks(NvmlDevice device, v1::DeviceFacts* facts);
  void MeasureNvlinkTraffic(int gpu, v1::DeviceFacts* facts);
  std::optional<int> Temperature(NvmlDevice device);

  // Calls an optional function and returns its answer. Nullopt: the function is missing, or
  // refuses. A lost GPU is recorded in lost_.
  template <typename Value, typename Function, typename... Arguments>
  std::optional<Value> Ask(Function* function, Arguments... arguments);

  const NvmlFunctions f_;
  const std::string root_;
  DriverVersions versions_;
  std::vector<Gpu> gpus_;
  std::vector<NvmlDevice> handles_;
  // The bytes that a GPU's NVLinks had carried at the last measurement.
  struct NvlinkTraffic {
    NvmlFieldValue sent = {};
    NvmlFieldValue received = {};
  };
  std::vector<NvlinkTraffic> nvlink_traffic_;
  NvmlEventSet events_ = nullptr;
  int lost_ = 0;  // the error of the latest call that reported a lost GPU
};

// Names the reasons in NVML's mask: "power cap", "hot (hardware)", ... Idleness is not named.
std::vector<std::string> ThrottleReasons(unsigned long long mask);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_GPU_NVML_H_
