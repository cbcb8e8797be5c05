// One rank's attempt, from the worker's TrainerStart to the process's exit code.
#ifndef MILEPOST_WORKER_TRAINER_TRAIN_H_
#define MILEPOST_WORKER_TRAINER_TRAIN_H_

#include "absl/functional/function_ref.h"
#include "common/message_channel.h"
#include "milepost/v1/trainer.pb.h"
#include "worker/trainer/device.h"
#include "worker/trainer/failure.h"

namespace milepost::worker {

// Meets the other ranks, and restores or initialises the state. Then it steps to the end, or until
// the ranks agree to stop, waits for the last checkpoint, and calls EndRank. Progress goes to
// `channel`, logs to spdlog's default logger. Blocks. Returns an exit code of common/exit_codes.h.
int Train(v1::TrainerStart start, MessageChannel* channel, const TrainerDevice& device);

// Tells the worker of a failure. Returns the exit code. After a failure of the host it does not
// return but ends the process: call it while everything that may wait for that host, such as a disk
// that is silent, is still there.
int EndRank(const TrainerExit& exit, MessageChannel* channel);

// Reads the TrainerStart that the worker sends, and returns what `run` makes of it. Blocks.
int RunRank(MessageChannel channel, absl::FunctionRef<int(v1::TrainerStart, MessageChannel*)> run);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_TRAIN_H_
