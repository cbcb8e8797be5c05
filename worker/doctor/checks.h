// The checks that `milepost doctor` makes of this host. Each check blocks on the system calls and
// libraries that it examines; doctor.h bounds the time.
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
// Checks the driver, each GPU's health, clocks and place, and how the GPUs reach each other. `nvml`
// is what Nvml::Open returned: NOT_FOUND is reported as a fact, any other error as a failure.
Findings CheckGpus(const absl::StatusOr<std::unique_ptr<Nvml>>& nvml);

// ---- library_checks.cc ----
// 91301 gives "9.13.1" (cuDNN, NCCL, cuBLAS); 13000 gives "13.0" (CUDA).
std::string LibraryVersion(int64_t number);
std::string CudaVersion(int64_t number);
// Looks up the CUDA libraries that the trainer uses, as the dynamic linker finds them, and compares
// them with what the driver runs. `cuda_driver` is the newest CUDA that the driver runs. 0 means
// that the host has no GPUs, so that nothing is needed.
Findings CheckLibraries(int cuda_driver, bool cuda_trainer);

// ---- host_checks.cc ----
// Checks memory, huge pages, limits, shared memory, NUMA and the clock. With `gpus` it also checks
// what only GPUs need. `root` is put before /proc and /sys.
Findings CheckHost(bool gpus, const std::string& root = "");

// ---- container_checks.cc ----
// Asks podman, where it is installed, whether it works for this user and can run ranks in
// containers. With `gpus` it also looks for CDI's description of them. `root` is put before /etc
// and /run.
Findings CheckContainers(bool gpus, const std::string& root = "");
// What `podman info` said, as JSON.
Findings PodmanFindings(const std::string& info, bool root_user);

// ---- network_checks.cc ----
// Checks whether the coordinator answers, and over which interface (`coordinator`: host:port;
// empty: not checked). Also checks whether `nccl_interfaces`, the value of NCCL_SOCKET_IFNAME,
// names an interface that is up.
Findings CheckNetwork(const std::string& coordinator, const std::string& nccl_interfaces);
// NCCL's rule: "eth,ib" are prefixes of names, "=eth0" is a whole name, "^docker" excludes names.
bool NcclTakes(const std::string& nccl_interfaces, const std::string& interface);

// ---- disk_checks.cc ----
// Writes, syncs and reads `bytes` in the folder. Leaves nothing there.
Findings CheckDisk(const std::string& folder, int64_t bytes, absl::Duration budget);
// Reads up to `bytes` of a file, or of the files under a folder, bypassing the page cache.
Findings CheckDataSet(const std::string& path, int64_t bytes, absl::Duration budget);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_DOCTOR_CHECKS_H_
