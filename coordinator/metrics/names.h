// Label values that several series share. Pure and thread-safe.
#ifndef MILEPOST_COORDINATOR_METRICS_NAMES_H_
#define MILEPOST_COORDINATOR_METRICS_NAMES_H_

#include <string>

#include "milepost/v1/job.pb.h"
#include "milepost/v1/job_spec.pb.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::coordinator {

std::string StateLabel(v1::JobState state);          // "RUNNING"
std::string StateLabel(v1::WorkerState state);       // "READY"
std::string FailureLabel(v1::FailureClass failure);  // "OUT_OF_MEMORY"
std::string DeviceLabel(v1::DeviceKind device);      // "cuda"
std::string QueueLabel(const v1::Job& job);          // "research"

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_METRICS_NAMES_H_
