// Do a checkpoint's chunks cover every element of every tensor exactly once? Pure.
#ifndef MILEPOST_COORDINATOR_STORE_COVERAGE_H_
#define MILEPOST_COORDINATOR_STORE_COVERAGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

// Bytes of an element of a safetensors dtype ("F32", "BF16", ...); 0 when it is not one.
int64_t DtypeBytes(const std::string& dtype);

// Product of the shape (1 for a scalar). Nothing when a dimension is negative or it overflows.
std::optional<int64_t> ElementCount(const v1::TensorInfo& tensor);

// INVALID_ARGUMENT names the tensor that has no name, an unknown dtype, a bad shape, or is given
// twice.
absl::Status CheckTensors(const google::protobuf::RepeatedPtrField<v1::TensorInfo>& tensors);

// Of tensors that CheckTensors has found good; the largest number when it overflows.
int64_t BytesOf(const google::protobuf::RepeatedPtrField<v1::TensorInfo>& tensors);

// "tensor wte.weight m [0, 1048576)"
std::string DescribeChunk(const v1::TensorInfo& tensor, int64_t begin, int64_t end);

// FAILED_PRECONDITION names the first interval that is missing or doubled. O(chunks log chunks).
absl::Status CheckCoverage(const google::protobuf::RepeatedPtrField<v1::TensorInfo>& tensors,
                           std::vector<v1::StoredChunk> chunks);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_COVERAGE_H_
