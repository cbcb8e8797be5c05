// model.safetensors.index.json: which shard holds which tensor.
#ifndef MILEPOST_ENGINE_STATE_SAFETENSORS_INDEX_H_
#define MILEPOST_ENGINE_STATE_SAFETENSORS_INDEX_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::state {

inline constexpr int64_t kMaxSafetensorsIndexBytes = 64 << 20;

// Maps tensors to file names. NOT_FOUND: the index cannot be opened. INVALID_ARGUMENT, naming the
// path: it is too large, is not such JSON, or names a file that is not beside it.
absl::StatusOr<std::map<std::string, std::string>> ReadSafetensorsIndex(const std::string& path);
// Parses a text in the same way. Errors do not have a path.
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(absl::string_view json);

// Formats the index as Hugging Face does. Names must be UTF-8 (CHECK).
std::string FormatSafetensorsIndex(const std::map<std::string, std::string>& weight_map,
                                   int64_t total_bytes);

}  // namespace milepost::state

#endif  // MILEPOST_ENGINE_STATE_SAFETENSORS_INDEX_H_
