// Weights as a file has them.
//
//   std::string bytes;
//   EncodeWeights(values, DType::kBf16, &bytes);
#ifndef MILEPOST_CLIENT_CLI_WEIGHT_BYTES_H_
#define MILEPOST_CLIENT_CLI_WEIGHT_BYTES_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/dtype/dtype.h"

namespace milepost::client {

// The values of `bytes`, which are of `dtype` (kF32 or kBf16), to `values`.
void DecodeF32(absl::string_view bytes, DType dtype, float* values);

// Replaces `bytes` by the values in `dtype` (kF32, kBf16 or kF16), rounded to nearest.
void EncodeWeights(absl::Span<const float> values, DType dtype, std::string* bytes);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_WEIGHT_BYTES_H_
