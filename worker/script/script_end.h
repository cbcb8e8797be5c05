// How the end of a script's process is told: what its rank exits with, and why.
//
//   TrainerExit exit = ExitOfScript(process_end, out_of_memory, FirstCauseIn(error_file));
#ifndef MILEPOST_WORKER_SCRIPT_SCRIPT_END_H_
#define MILEPOST_WORKER_SCRIPT_SCRIPT_END_H_

#include <string>

#include "common/subprocess.h"
#include "worker/trainer/failure.h"

namespace milepost::worker {

// Of a script that nobody told to end. `out_of_memory`: the kernel killed a process of the rank for
// want of memory. `cause`: what the script says itself; empty: nothing, and the failure has the
// last line of its output. Pure.
TrainerExit ExitOfScript(const ExitResult& end, bool out_of_memory, const std::string& cause);

// FirstCause of the file's first MiB. Empty: there is no such file, or it says nothing.
std::string FirstCauseIn(const std::string& path);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_SCRIPT_END_H_
