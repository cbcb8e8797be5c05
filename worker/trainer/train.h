// One rank's attempt, from the worker's TrainerStart to the process's exit code.
#ifndef MILEPOST_WORKER_TRAINER_TRAIN_H_
#define MILEPOST_WORKER_TRAINER_TRAIN_H_

#include "common/message_channel.h"
#include "worker/trainer/device.h"

namespace milepost::worker {

// Reads TrainerStart from `channel`, meets the other ranks, and restores or initialises the state.
// Then it steps to the end, or until the ranks agree to stop, and waits for the last checkpoint.
// Progress and failures go to `channel`, logs to spdlog's default logger. Blocks. Returns an exit
// code of common/exit_codes.h.
int Train(MessageChannel channel, const TrainerDevice& device);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_TRAIN_H_
