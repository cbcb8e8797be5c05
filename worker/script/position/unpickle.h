// Reads the pickles that PyTorch's C++ code writes of its flight recorder.
// https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
//
//   MP_ASSIGN_OR_RETURN(const nlohmann::json record, Unpickle(bytes));
//
// A pickle is a program that may call anything. Here it calls nothing: known are the operations
// that make None, booleans, numbers, text, tuples, lists and dictionaries with texts as keys. Pure
// and thread-safe. Any bytes are safe.
#ifndef MILEPOST_WORKER_SCRIPT_POSITION_UNPICKLE_H_
#define MILEPOST_WORKER_SCRIPT_POSITION_UNPICKLE_H_

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::worker {

// Tuples become arrays. INVALID_ARGUMENT: it is cut off, or does anything else. RESOURCE_EXHAUSTED:
// its values take more than four times its own bytes and 1 MiB.
absl::StatusOr<nlohmann::json> Unpickle(absl::string_view pickle);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_POSITION_UNPICKLE_H_
