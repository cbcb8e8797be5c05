// The fields of a spec that name files on the training hosts: one list for all code that needs
// them. Pure and thread-safe.
//
//   ForEachPath(&spec, [](absl::string_view field, PathUse use, std::string* path) { ... });
#ifndef MILEPOST_COMMON_SPEC_PATHS_H_
#define MILEPOST_COMMON_SPEC_PATHS_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {

enum class PathUse { kRead, kWrite };

// Calls visit(field, use, path) for each field whose part of the spec is present, also for empty
// paths. The visitor may change `path`.
using PathVisitor = absl::FunctionRef<void(absl::string_view, PathUse, std::string*)>;
void ForEachPath(v1::JobSpec* spec, PathVisitor visit);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_PATHS_H_
