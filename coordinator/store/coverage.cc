#include "coordinator/store/coverage.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace milepost::coordinator {

int64_t DtypeBytes(const std::string& dtype) {
  static constexpr std::pair<const char*, int64_t> kSizes[] = {
      {"F64", 8}, {"F32", 4}, {"F16", 2},  {"BF16", 2},    {"I64", 8},
      {"I32", 4}, {"I16", 2}, {"I8", 1},   {"U64", 8},     {"U32", 4},
      {"U16", 2}, {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& [name, bytes] : kSizes) {
    if (dtype == name) return bytes;
  }
  return 0;
}

std::optional<int64_t> ElementCount(const v1::TensorInfo& tensor) {
  int64_t count = 1;
  for (int64_t dimension : tensor.shape()) {
    if (dimension < 0 || __builtin_mul_overflow(count, dimension, &count)) return std::nullopt;
  }
  return count;
}

std::string DescribeChunk(const v1::TensorInfo& tensor, int64_t begin, int64_t end) {
  return absl::StrCat("tensor ", tensor.name(), " ", tensor.kind(), " [", begin, ", ", end, ")");
}

absl::Status CheckTensors(const google::protobuf::RepeatedPtrField<v1::TensorInfo>& tensors) {
  std::set<std::pair<std::string, std::string>> seen;
  for (int i = 0; i < tensors.size(); ++i) {
    const v1::TensorInfo& tensor = tensors[i];
    const std::string where = absl::StrCat("tensors[", i, "] '", tensor.name(), "'");
    if (tensor.name().empty()) return absl::InvalidArgumentError(where + ": has no name");
    if (DtypeBytes(tensor.dtype()) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": dtype '", tensor.dtype(), "' is not one of safetensors'"));
    }
    if (!ElementCount(tensor).has_value()) {
      return absl::InvalidArgumentError(where + ": the shape is negative or too large");
    }
    if (!seen.emplace(tensor.name(), tensor.kind()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": kind '", tensor.kind(), "' is given twice"));
    }
  }
  return absl::OkStatus();
}

int64_t BytesOf(const google::protobuf::RepeatedPtrField<v1::TensorInfo>& tensors) {
  int64_t all = 0;
  for (const v1::TensorInfo& tensor : tensors) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(ElementCount(tensor).value_or(0), DtypeBytes(tensor.dtype()),
                               &bytes) ||
        __builtin_add_overflow(all, bytes, &all)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return all;
}

absl::Status CheckCoverage(const google::protobuf::RepeatedPtrField<v1::TensorInfo>& tensors,
                           std::vector<v1::StoredChunk> chunks) {
  std::sort(chunks.begin(), chunks.end(), [](const v1::StoredChunk& a, const v1::StoredChunk& b) {
    return std::tuple(a.tensor(), a.begin(), a.end()) < std::tuple(b.tensor(), b.begin(), b.end());
  });
  auto missing = [&](int tensor, int64_t begin, int64_t end) {
    return absl::FailedPreconditionError(
        absl::StrCat(DescribeChunk(tensors[tensor], begin, end), " is missing"));
  };
  size_t next = 0;
  for (int tensor = 0; tensor < tensors.size(); ++tensor) {
    const int64_t count = ElementCount(tensors[tensor]).value_or(0);
    int64_t covered = 0;
    for (; next < chunks.size() && chunks[next].tensor() == tensor; ++next) {
      const v1::StoredChunk& chunk = chunks[next];
      if (chunk.begin() > covered) return missing(tensor, covered, chunk.begin());
      if (chunk.begin() < covered) {
        return absl::FailedPreconditionError(absl::StrCat(
            DescribeChunk(tensors[tensor], chunk.begin(), std::min(covered, chunk.end())),
            " is written twice"));
      }
      if (chunk.end() < chunk.begin() || chunk.end() > count) {
        return absl::FailedPreconditionError(
            absl::StrCat(DescribeChunk(tensors[tensor], chunk.begin(), chunk.end()),
                         " is no piece of its ", count, " elements"));
      }
      covered = chunk.end();
    }
    if (covered < count) return missing(tensor, covered, count);
  }
  if (next == chunks.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "there is a chunk of tensor number ", chunks[next].tensor(), ", of ", tensors.size()));
}

}  // namespace milepost::coordinator
