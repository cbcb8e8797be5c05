// A tensor that is read with more rows than its file has, as a larger vocabulary needs. Each
// further row is the mean of the file's: what transformers' resize_token_embeddings begins with,
// less its noise of a 10^-9th of their covariance (Hewitt, "Initializing New Word Embeddings for
// Pretrained Language Models", 2021).
//
//   MP_ASSIGN_OR_RETURN(const auto table, ResizedTensor::Open(place.file, *place.tensor, 32064));
//   MP_RETURN_IF_ERROR(table.ReadF32(begin, end, values));   // elements of [32064, width]
//
// Thread-safe. Calls block on the disk.
#ifndef MILEPOST_ENGINE_STATE_RESIZED_TENSOR_H_
#define MILEPOST_ENGINE_STATE_RESIZED_TENSOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/state/safetensors.h"

namespace milepost::state {

// Whether a tensor of the one shape can be read as the other: rows alike, and fewer.
bool GrowsTo(const std::vector<int64_t>& shape, const std::vector<int64_t>& wanted);

class ResizedTensor {
 public:
  // Reads the whole tensor. It has rows, and at most `rows` (CHECK). `tensor` must outlive this.
  // INVALID_ARGUMENT: ReadF32's.
  static absl::StatusOr<ResizedTensor> Open(std::shared_ptr<const SafetensorsFile> file,
                                            const SafetensorsTensor& tensor, int64_t rows);
  // Elements [begin, end), inside the resized tensor.
  absl::Status ReadF32(int64_t begin, int64_t end, float* out) const;

 private:
  ResizedTensor() = default;

  std::shared_ptr<const SafetensorsFile> file_;
  const SafetensorsTensor* tensor_ = nullptr;
  int64_t elements_ = 0;  // of the file's
  std::vector<float> mean_;
};

}  // namespace milepost::state

#endif  // MILEPOST_ENGINE_STATE_RESIZED_TENSOR_H_
