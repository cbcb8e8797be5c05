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
// the ranks agree to stop, and waits for the last checkpoint. Progress goes to `channel`, logs to
// spdlog's default logger. Blocks.
TrainerExit Train(v1::TrainerStart start, MessageChannel* channel, const TrainerDevice& device);

// What every rank's process does around it: reads the TrainerStart that its worker sends, calls
// `run` with it, and tells the worker of a failure. Blocks. Returns an exit code of
// common/exit_codes.h; after a failure of the host it does not return but ends the process with it.
int RunRank(MessageChannel channel,
            absl::FunctionRef<TrainerExit(v1::TrainerStart, MessageChannel*)> run);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_TRAIN_H_
