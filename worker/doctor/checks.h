// The checks that `milepost doctor` makes of this host. Each blocks on the system calls and
// libraries it is about; doctor.h bounds them.
#ifndef MILEPOST_WORKER_DOCTOR_CHECKS_H_
#define MILEPOST_WORKER_DOCTOR_CHECKS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/doctor/finding.h"
#include "worker/gpu/nvml.h"

namespace milepost::worker {

// ---- gpu_checks.cc ----
// Driver, each GPU's health, clocks and place, and how they reach each other. `nvml` as
// Nvml::Open gave it: that there is no driver is a fact, a broken one a failure.
Findings CheckGpus(const absl::StatusOr<std::unique_ptr<Nvml>>& nvml);

// ---- library_checks.cc ----
// "9.13.1" of 91301 (cuDNN, NCCL, cuBLAS); "13.0" of 13000 (CUDA).
std::string LibraryVersion(int64_t number);
std::string CudaVersion(int64_t number);
// The CUDA libraries that the trainer uses, as the dynamic linker finds them, beside what the
// driver runs. `cuda_driver`: its newest CUDA, 0: no GPUs here, so that nothing is needed.
Findings CheckLibraries(int cuda_driver, bool cuda_trainer);

// ---- host_checks.cc ----
// Memory, huge pages, limits, shared memory, NUMA and the clock. `root` stands before /proc, /sys;
// `gpus`: what only GPUs need is checked too.
Findings CheckHost(bool gpus, const std::string& root = "");

// ---- network_checks.cc ----
// Whether the coordinator (host:port; empty: not asked for) answers, over which interface, and
// whether `nccl_interfaces`, the value of NCCL_SOCKET_IFNAME, names one that is up.
Findings CheckNetwork(const std::string& coordinator, const std::string& nccl_interfaces);
// NCCL's rule: "eth,ib" beginnings of names, "=eth0" whole names, "^docker" all but these.
bool NcclTakes(const std::string& nccl_interfaces, const std::string& interface);

// ---- disk_checks.cc ----
// Writes, syncs and reads `bytes` in the folder; leaves nothing there.
Findings CheckDisk(const std::string& folder, int64_t bytes, absl::Duration budget);
// Reads up to `bytes` of a file, or of the files under a folder, past the page cache.
Findings CheckDataSet(const std::string& path, int64_t bytes, absl::Duration budget);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_DOCTOR_CHECKS_H_
