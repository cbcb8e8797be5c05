// One rank of a script job, from the worker's TrainerStart to the process's exit code: what
// trainer/train.h is for jobs that Milepost trains itself. The worker and the coordinator see no
// difference.
#ifndef MILEPOST_WORKER_SCRIPT_SCRIPT_RANK_H_
#define MILEPOST_WORKER_SCRIPT_SCRIPT_RANK_H_

#include <string>

#include "common/message_channel.h"
#include "milepost/v1/trainer.pb.h"
#include "worker/cgroup/cgroup.h"
#include "worker/trainer/failure.h"

namespace milepost::worker {

struct ScriptRankOptions {
  int held = -1;          // a descriptor for ScriptOptions; -1: none
  std::string container;  // the name of its container, should the job have one
  // That its processes join, whose limits may be why it failed. It is removed if it is empty then.
  Cgroup cgroup;
};

// Meets the other ranks, starts the command with torchrun's environment, and waits for its end.
// InstallTrainerSignals must have been called. A request to stop is passed on as SIGTERM to the
// script's own process: a script that ends then, however it ends, has been stopped. A request to
// abort ends it at once. Nothing that the script started outlives the call, save what waits in the
// kernel. Blocks.
TrainerExit RunScript(const v1::TrainerStart& start, MessageChannel* channel,
                      ScriptRankOptions options);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_SCRIPT_RANK_H_
