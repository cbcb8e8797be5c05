// The trainer process's signals: SIGTERM and SIGINT ask it to stop at a step boundary; SIGBUS (a
// mapped data file became shorter) ends it with kExitData and a message.
#ifndef MILEPOST_WORKER_TRAINER_SIGNALS_H_
#define MILEPOST_WORKER_TRAINER_SIGNALS_H_

namespace milepost::worker {

// Once, first thing in main.
void InstallTrainerSignals();

// Whether a stop was asked for. Async-signal-safe and thread-safe.
bool StopRequested();

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_SIGNALS_H_
