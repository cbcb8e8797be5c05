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

// The most that a header may take: version 1.0's own limit, generous for one dimension.
inline constexpr int64_t kMaxNpyHeaderBytes = 65536;

// Any array's header.
struct NpyArrayHeader {
  std::string descr;  // the dtype as NumPy writes it: "<i4"
  std::vector<int64_t> shape;
  int64_t data_offset = 0;
};
inline constexpr size_t kMaxNpyDimensions = 32;

// Whether a file that begins so is one (perhaps a damaged one).
bool IsNpy(absl::string_view prefix);

// `prefix`: the file's first bytes, min(file size, kMaxNpyHeaderBytes) of them. INVALID_ARGUMENT
// says what is wrong, without the path.
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view prefix);
// The same for an array of any dtype and shape, in C order.
absl::StatusOr<NpyArrayHeader> ParseNpyArrayHeader(absl::string_view prefix);

// One in memory: `data` is element 0, as long as `file`.
struct NpyArray {
  MappedFile file;
  NpyArrayHeader header;
  const char* data = nullptr;
};
// MappedFile::Open's errors; INVALID_ARGUMENT with the path for a header that cannot be read.
absl::StatusOr<NpyArray> OpenNpyArray(const std::string& path);
// INVALID_ARGUMENT, without the path, unless the file holds the header's elements of
// `element_bytes` and no more.
absl::Status CheckNpyBytes(const NpyArray& array, int64_t element_bytes);

// Version 1.0, always the same length whatever the count, so that it can be written over.
inline constexpr int64_t kWrittenNpyHeaderBytes = 128;
std::string FormatNpyHeader(TokenType type, int64_t elements);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_NPY_HEADER_H_
