// The header of a safetensors file: strict reading and exact writing. The format
// (https://huggingface.co/docs/safetensors): 8 bytes of little-endian length N, N bytes of JSON,
// data.
//
//   MP_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(bytes, file_bytes));
//   for (const SafetensorsTensor& tensor : header.tensors) ...
//
// Pure: no files. The cost of a hostile header is bounded. Nothing recurses, and a tensor has at
// most kMaxSafetensorsDimensions dimensions. Memory stays within a small multiple of the header,
// which has at most kMaxSafetensorsHeaderBytes.
#ifndef MILEPOST_ENGINE_STATE_SAFETENSORS_HEADER_H_
#define MILEPOST_ENGINE_STATE_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace milepost::state {

inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the format's own limit
inline constexpr int64_t kMaxSafetensorsDimensions = 64;

// One tensor's entry. Its bytes are [begin, end) of the data, which follow the header.
struct SafetensorsTensor {
  std::string name;
  std::string dtype;  // "F32", "BF16", "F16", "I64", "BOOL", ...
  std::vector<int64_t> shape;
  int64_t elements = 1;  // product of shape
  int64_t begin = 0;
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order of their bytes
  std::vector<std::pair<std::string, std::string>> metadata;
  int64_t data_offset = 0;  // bytes before the data: 8 + N
};

// Makes a name from a file fit for a message: bounded, without control characters.
std::string ShownName(absl::string_view text);

// Bytes of one element. 0: the dtype is not known, or is not of whole bytes.
int64_t SafetensorsElementBytes(absl::string_view dtype);

// Reads the length N from the file's first 8 bytes. INVALID_ARGUMENT: N is over the limit.
// DATA_LOSS: the file is shorter than 8 + N.
absl::StatusOr<int64_t> ParseSafetensorsHeaderLength(absl::string_view first_bytes,
                                                     int64_t file_bytes);

// `prefix` has at least the file's first 8 + N bytes, or the whole file. DATA_LOSS: the
// file ends too early. INVALID_ARGUMENT, without the path, for everything that the format forbids:
// - JSON that is not one object of tensors, an unknown dtype, a doubled name or field.
// - An overflow, a hole, an overlap, a size other than the shape's, bytes after the last tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view prefix,
                                                         int64_t file_bytes);

// Orders tensors as the reference implementation does: larger dtypes first, then by name. Lays them
// out from 0 and fills in `elements`, `begin` and `end`. INVALID_ARGUMENT: an unknown dtype, an
// impossible shape, or a name that is empty, doubled, not UTF-8 or "__metadata__".
absl::Status LayOutSafetensors(std::vector<SafetensorsTensor>* tensors);

// Length and JSON for laid-out tensors and the metadata {"format": "pt"}: byte for byte what the
// reference implementation writes. RESOURCE_EXHAUSTED: it would be over the limit.
absl::StatusOr<std::string> FormatSafetensorsHeader(absl::Span<const SafetensorsTensor> tensors);

}  // namespace milepost::state

#endif  // MILEPOST_ENGINE_STATE_SAFETENSORS_HEADER_H_
