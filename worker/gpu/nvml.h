// What NVIDIA's management library knows of this host's GPUs: what they are, how they do, how they
// are connected.
//
//   MP_ASSIGN_OR_RETURN(std::unique_ptr<Nvml> nvml, Nvml::Open());
//   for (const Gpu& gpu : nvml->gpus()) {
//     v1::DeviceFacts facts = nvml->Measure(gpu.index);
//     if (!facts.problem().empty()) ...
//   }
//
// Calls into the driver: they take milliseconds, and have been seen to hang on a broken GPU, so
// keep them off threads that others wait for. One thread at a time. Does not touch CUDA: makes no
// context and takes no GPU memory.
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
  std::string driver;  // "580.65.06"; empty: not told
  std::string nvml;
  int cuda = 0;  // the newest CUDA that the driver runs: 13000 is 13.0
};

// What does not change of one GPU.
struct Gpu {
  int index = 0;        // NVML's: by PCI address
  std::string problem;  // why it cannot be used; the rest may then be empty
  std::string model;    // "NVIDIA H200"
  std::string uuid;     // "GPU-...": what CUDA_VISIBLE_DEVICES takes
  int64_t memory_bytes = 0;
  int compute_capability = 0;      // 90: 9.0
  std::string pci_address;         // "0000:3b:00.0", as under /sys/bus/pci/devices
  std::optional<int> numa_node;    // that it is attached to
  std::string local_cores;         // of that node: "0-31,64-95"; empty: not known
  std::optional<bool> persistent;  // the driver stays loaded while nobody uses it
};

// How two GPUs reach each other.
struct PeerLink {
  // "PCIe switch", "PCIe switches", "host bridge", "NUMA node", "between NUMA nodes"; empty: not
  // told.
  std::string path;
  std::optional<bool> direct;  // one may read the other's memory
};

class Nvml {
 public:
  // NOT_FOUND: no driver here; UNAVAILABLE: it is not loaded; FAILED_PRECONDITION: the library and
  // the kernel's driver do not fit; PERMISSION_DENIED. Each says what to do.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open(const std::string& library = kNvmlLibrary);
  // `root` stands before /sys; tests use it.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open(const NvmlFunctions& functions,
                                                    std::string root = "");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const DriverVersions& versions() const { return versions_; }
  // By index: gpus()[i].index == i.
  const std::vector<Gpu>& gpus() const { return gpus_; }

  // How the GPU does now; what it does not tell is absent. `problem` when it is lost, or could not
  // be used from the start. slot, time and last_xid are the caller's. NVLinks' traffic is that
  // since the call before: the first has none.
  v1::DeviceFacts Measure(int gpu);

  struct Xid {
    int gpu = 0;
    int code = 0;
  };
  // The error reports of the driver since the last call; at most 64 at once. Does not wait.
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

  // The answer of an optional function: nullopt where it is missing or refuses. A GPU that is lost
  // is remembered.
  template <typename Value, typename Function, typename... Arguments>
  std::optional<Value> Ask(Function* function, Arguments... arguments);

  const NvmlFunctions f_;
  const std::string root_;
  DriverVersions versions_;
  std::vector<Gpu> gpus_;
  std::vector<NvmlDevice> handles_;
  // What a GPU's NVLinks had carried at the measurement before.
  struct NvlinkTraffic {
    NvmlFieldValue sent = {};
    NvmlFieldValue received = {};
  };
  std::vector<NvlinkTraffic> nvlink_traffic_;
  NvmlEventSet events_ = nullptr;
  int lost_ = 0;  // the error of the latest call that said that a GPU is gone
};

// "power cap", "hot (hardware)", ... of NVML's mask of reasons; that it is idle is none.
std::vector<std::string> ThrottleReasons(unsigned long long mask);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_GPU_NVML_H_
