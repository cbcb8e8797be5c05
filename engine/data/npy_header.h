// The header of a .npy file: strict reading and exact writing.
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#ifndef MILEPOST_ENGINE_DATA_NPY_HEADER_H_
#define MILEPOST_ENGINE_DATA_NPY_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/mapped_file.h"
#include "engine/data/token_file.h"

namespace milepost::data {

struct NpyHeader {
  TokenType type = TokenType::kUint8;
  int64_t elements = 0;
  int64_t data_offset = 0;  // bytes before the first element
};

// The largest header that is accepted: version 1.0's own limit, generous for one dimension.
inline constexpr int64_t kMaxNpyHeaderBytes = 65536;

// The header of an array of any dtype and shape.
struct NpyArrayHeader {
  std::string descr;  // the dtype as NumPy writes it: "<i4"
  std::vector<int64_t> shape;
  int64_t data_offset = 0;
};
inline constexpr size_t kMaxNpyDimensions = 32;

// True when a file that begins like this is one, even a damaged one.
bool IsNpy(absl::string_view prefix);

// `prefix` has the file's first min(file size, kMaxNpyHeaderBytes) bytes. INVALID_ARGUMENT says
// what is wrong, without the path.
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view prefix);
// Does the same for an array of any dtype and shape, in C order.
absl::StatusOr<NpyArrayHeader> ParseNpyArrayHeader(absl::string_view prefix);

// An array in memory. `data` is element 0, and is valid as long as `file`.
struct NpyArray {
  MappedFile file;
  NpyArrayHeader header;
  const char* data = nullptr;
};
// Errors are MappedFile::Open's. INVALID_ARGUMENT, with the path: the header cannot be read.
absl::StatusOr<NpyArray> OpenNpyArray(const std::string& path);
// INVALID_ARGUMENT, without the path, unless the file holds exactly the header's elements of
// `element_bytes` each.
absl::Status CheckNpyBytes(const NpyArray& array, int64_t element_bytes);

// Writes version 1.0. The length is the same for every count, so the header can be overwritten.
inline constexpr int64_t kWrittenNpyHeaderBytes = 128;
std::string FormatNpyHeader(TokenType type, int64_t elements);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_NPY_HEADER_H_
