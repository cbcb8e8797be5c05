// What a message has from a later version of Milepost, whose fields this one does not know.
//
//   const auto unknown = UnknownField(spec.model(), "model");   // "model.llama"
#ifndef MILEPOST_COMMON_SPEC_UNKNOWN_FIELDS_H_
#define MILEPOST_COMMON_SPEC_UNKNOWN_FIELDS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace milepost {

// The path of the first message in `message`, itself at `path`, that has an unknown field. Pure.
std::optional<std::string> UnknownField(const google::protobuf::Message& message,
                                        absl::string_view path);

// FAILED_PRECONDITION, with the remedy, where a model has an unknown field, or an enum's number
// that is unknown: what is built without it is another model. A field of a model is left out where
// it has its default, so that what an older version can do is not refused.
absl::Status CheckModelIsKnown(const google::protobuf::Message& model);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_UNKNOWN_FIELDS_H_
