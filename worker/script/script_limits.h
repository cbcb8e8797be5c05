// How a script's end is named when a limit of its rank's control group was behind it.
//
//   TrainerExit exit = NamedByLimits(ExitOf(end), cgroup.Read());
#ifndef MILEPOST_WORKER_SCRIPT_SCRIPT_LIMITS_H_
#define MILEPOST_WORKER_SCRIPT_SCRIPT_LIMITS_H_

#include "worker/cgroup/cgroup.h"
#include "worker/trainer/failure.h"

namespace milepost::worker {

// A failure of the script's is OUT_OF_MEMORY if the kernel has ended any process of the rank for
// want of memory: whoever waits for that process often fails otherwise, and later. Where processes
// were refused, the message says so. Any other end stays as it is. Pure.
TrainerExit NamedByLimits(TrainerExit exit, const CgroupRecord& used);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_SCRIPT_LIMITS_H_
