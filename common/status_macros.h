// Returns early when an absl::Status or absl::StatusOr has failed.
//
//   MP_RETURN_IF_ERROR(file.Open(path));
//   MP_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
#ifndef MILEPOST_COMMON_STATUS_MACROS_H_
#define MILEPOST_COMMON_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define MP_RETURN_IF_ERROR(expression)                                                 \
  do {                                                                                 \
    if (::absl::Status mp_status_ = (expression); !mp_status_.ok()) return mp_status_; \
  } while (false)

#define MP_CONCAT_INNER_(a, b) a##b
#define MP_CONCAT_(a, b) MP_CONCAT_INNER_(a, b)
#define MP_ASSIGN_OR_RETURN(declaration, expression) \
  MP_ASSIGN_OR_RETURN_(MP_CONCAT_(mp_statusor_, __LINE__), declaration, expression)
#define MP_ASSIGN_OR_RETURN_(result, declaration, expression) \
  auto result = (expression);                                 \
  if (!result.ok()) return std::move(result).status();        \
  declaration = std::move(result).value()

namespace milepost {

// Keeps the code, and puts `prefix` and ": " before the message to say where the failure happened.
inline absl::Status Annotate(const absl::Status& status, absl::string_view prefix) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), std::string(prefix) + ": " + std::string(status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_STATUS_MACROS_H_
