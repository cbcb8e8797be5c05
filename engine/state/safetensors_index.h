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

// From tensor to file name. NOT_FOUND when it cannot be opened; INVALID_ARGUMENT, naming the path,
// when it is too large, no such JSON, or names a file that is not beside it.
absl::StatusOr<std::map<std::string, std::string>> ReadSafetensorsIndex(const std::string& path);
// The same of a text, without the path.
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(absl::string_view json);

// As Hugging Face writes it. Names must be UTF-8 (CHECK).
std::string FormatSafetensorsIndex(const std::map<std::string, std::string>& weight_map,
                                   int64_t total_bytes);

}  // namespace milepost::state

#endif  // MILEPOST_ENGINE_STATE_SAFETENSORS_INDEX_H_
