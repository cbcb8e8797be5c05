// Where a Python program is, by what `faulthandler` writes of its threads.
// https://docs.python.org/3/library/faulthandler.html
//
//   PlaceInStack(text, "/shared/gpt") == "train.py:88 (main), in all_reduce of distributed_c10d.py"
//
// Pure and thread-safe. Any bytes are safe.
#ifndef MILEPOST_WORKER_SCRIPT_POSITION_PYTHON_STACK_H_
#define MILEPOST_WORKER_SCRIPT_POSITION_PYTHON_STACK_H_

#include <string>

#include "absl/strings/string_view.h"

namespace milepost::worker {

// Of the main thread as it was written last: the innermost line that is not a library's, and the
// function of a library that it is in. Paths are relative to `folder`, or without their folders.
// Empty: nothing can be read.
std::string PlaceInStack(absl::string_view text, absl::string_view folder);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_POSITION_PYTHON_STACK_H_
