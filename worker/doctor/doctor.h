// Runs all checks of this host, each bounded in time, and is the command `milepost doctor`.
//
//   milepost-worker doctor --data-dir DIR -o json
//
//   Findings findings = RunDoctor(options);
//
// It uses no GPU memory and changes nothing. It writes 256 MiB to a file without a name.
#ifndef MILEPOST_WORKER_DOCTOR_DOCTOR_H_
#define MILEPOST_WORKER_DOCTOR_DOCTOR_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "worker/doctor/finding.h"
#include "worker/gpu/nvml.h"

namespace milepost::worker {

struct DoctorOptions {
  std::string data_dir;         // where coordinator or worker keep their data; empty: not checked
  std::string coordinator;      // host:port; empty: not checked
  std::string data_set;         // a file or folder; empty: not checked
  std::string nccl_interfaces;  // NCCL_SOCKET_IFNAME
  bool cuda_trainer = false;    // milepost-trainer-cuda is installed
  bool gpus = true;             // look at the driver, its GPUs and the CUDA libraries
  int64_t disk_bytes = int64_t{256} << 20;
  absl::Duration disk_budget = absl::Seconds(5);  // for each pass over the disk
  absl::Duration patience = absl::Seconds(30);    // with each group of checks
  std::function<absl::StatusOr<std::unique_ptr<Nvml>>()> open_nvml = [] { return Nvml::Open(); };
};

// A group that does not end within `patience` counts as a failure, and its thread is left behind.
// End the process without waiting for threads.
Findings RunDoctor(const DoctorOptions& options);

// The command `milepost-worker doctor ARGUMENTS`: prints the findings and ends the process. Exit
// codes: 1 when a finding is a failure, 2 for a wrong command line, otherwise 0.
[[noreturn]] void DoctorMain(int argc, char** argv);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_DOCTOR_DOCTOR_H_
