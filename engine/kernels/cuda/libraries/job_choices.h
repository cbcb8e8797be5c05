// The algorithms of a job's products, for all its ranks and attempts: what DeviceProducts::Choices
// is made of. Pure: no CUDA needed.
//
//   JobChoices choices(identity);             // of this device and library: as AlgorithmTable's
//   choices.Use(text);                        // of earlier attempts
//   if (const Algorithm* found = choices.Find(key)) ...
//   choices.Put(key, chosen);
//   std::string text = choices.Text();        // for later ones
//
// A job may go from one model of GPU to another and back: the text has an AlgorithmTable for each
// identity that it met, the latest first. Not thread-safe.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_JOB_CHOICES_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_JOB_CHOICES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/kernels/cuda/libraries/algorithm_file.h"

namespace milepost::kernels::cuda {

class JobChoices {
 public:
  explicit JobChoices(std::string identity);

  // FAILED_PRECONDITION: the text has nothing for this identity; DATA_LOSS: what it has is damaged.
  // Then nothing of this identity is used; other identities' tables stay in Text().
  absl::Status Use(absl::string_view text);
  const Algorithm* Find(absl::string_view key) const { return own_.Find(key); }
  // One that is there stays as it is.
  void Put(absl::string_view key, const Algorithm& algorithm);

  const std::string& identity() const { return identity_; }

  // At most `most_bytes`, as far as the own table alone is not longer: other tables are left out,
  // the oldest first.
  std::string Text(size_t most_bytes) const;

 private:
  const std::string identity_;
  AlgorithmTable own_;
  std::vector<std::string> others_;  // the latest first
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_JOB_CHOICES_H_
