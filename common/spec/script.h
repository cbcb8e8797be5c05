// What is known of a script's environment before it runs.
#ifndef MILEPOST_COMMON_SPEC_SCRIPT_H_
#define MILEPOST_COMMON_SPEC_SCRIPT_H_

#include "absl/strings/string_view.h"

namespace milepost {

// True for a variable that each rank of a script is given (docs/use/scripts.md), so that a spec may
// not set it. Pure and thread-safe.
bool IsSetForScripts(absl::string_view name);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_SCRIPT_H_
