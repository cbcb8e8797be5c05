#include "engine/state/resized_tensor.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::state {

bool GrowsTo(const std::vector<int64_t>& shape, const std::vector<int64_t>& wanted) {
  return !shape.empty() && shape.size() == wanted.size() && shape[0] > 0 && shape[0] < wanted[0] &&
         std::equal(shape.begin() + 1, shape.end(), wanted.begin() + 1);
}

absl::StatusOr<ResizedTensor> ResizedTensor::Open(std::shared_ptr<const SafetensorsFile> file,
                                                  const SafetensorsTensor& tensor, int64_t rows) {
  MP_CHECK(!tensor.shape.empty() && tensor.shape[0] > 0 && tensor.shape[0] <= rows);
  ResizedTensor resized;
  int64_t width = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) width *= tensor.shape[i];
  resized.elements_ = tensor.shape[0] * width;
  std::vector<double> sums(static_cast<size_t>(width), 0.0);
  std::vector<float> row(static_cast<size_t>(width));
  for (int64_t at = 0; at < resized.elements_; at += width) {
    MP_RETURN_IF_ERROR(file->ReadF32(tensor, at, at + width, row.data()));
    for (size_t i = 0; i < row.size(); ++i) sums[i] += row[i];
  }
  for (const double sum : sums) {
    resized.mean_.push_back(static_cast<float>(sum / static_cast<double>(tensor.shape[0])));
  }
  resized.file_ = std::move(file);
  resized.tensor_ = &tensor;
  return resized;
}

absl::Status ResizedTensor::ReadF32(int64_t begin, int64_t end, float* out) const {
  const int64_t own = std::min(end, elements_);
  if (begin < own) {
    MP_RETURN_IF_ERROR(file_->ReadF32(*tensor_, begin, own, out));
  }
  const auto width = static_cast<int64_t>(mean_.size());
  for (int64_t at = std::max(begin, elements_); at < end; ++at) {
    out[at - begin] = mean_[static_cast<size_t>(at % width)];
  }
  return absl::OkStatus();
}

}  // namespace milepost::state
