// The file that keeps, per device, which of cuBLASLt's algorithms was the fastest for each product,
// so that only the first start on a machine times them, and later ones get the same results to the
// bit. Pure: no CUDA needed.
//
//   AlgorithmTable table(identity);                    // "NVIDIA H200, cuBLASLt 130100, 32 MiB"
//   if (auto read = table.Load(path); !read.ok()) LOG(read);     // an empty table: time again
//   if (const Algorithm* found = table.Find(ProductKey(product))) ...
//   table.Put(key, timed);
//   MP_RETURN_IF_ERROR(table.Save(path));
//
// The text also goes with a job, so that all its ranks and attempts choose alike (job_choices.h).
//
// Text: a line with the format's name and version, one with the identity, then one a product: its
// algorithm in hexadecimal, its workspace's bytes, the time taken in nanoseconds, its key; at the
// end the XXH3 of all of it. A file that is damaged, of another identity or version, or too large
// is not used at all. Not thread-safe.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_ALGORITHM_FILE_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_ALGORITHM_FILE_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost::kernels::cuda {

struct Algorithm {
  std::array<uint64_t, 8> words = {};  // cublasLtMatmulAlgo_t
  int64_t workspace_bytes = 0;
  int64_t nanoseconds = 0;  // 0: not timed
  bool operator==(const Algorithm&) const = default;
};

inline constexpr int64_t kMaxAlgorithms = 4096;
inline constexpr int64_t kMaxAlgorithmFileBytes = int64_t{2} << 20;

class AlgorithmTable {
 public:
  // `identity`: everything that makes a choice worthless when it changes; printable, one line.
  explicit AlgorithmTable(std::string identity);

  // nullptr: none.
  const Algorithm* Find(absl::string_view key) const;
  // `key`: printable, one line, at most 256 characters, else it is not kept. A table that is full
  // keeps no further products.
  void Put(absl::string_view key, const Algorithm& algorithm);
  int64_t size() const { return static_cast<int64_t>(algorithms_.size()); }

  std::string Format() const;
  // Replaces the table's contents; on errors it becomes empty. FAILED_PRECONDITION: another
  // identity or version; DATA_LOSS: damaged. Messages are for the user.
  absl::Status Parse(absl::string_view text);

  // NOT_FOUND: there is no such file, the first time.
  absl::Status Load(const std::string& path);
  // Through a file beside it that is renamed: a reader sees the old one or the new one.
  absl::Status Save(const std::string& path) const;

 private:
  std::string identity_;
  std::map<std::string, Algorithm, std::less<>> algorithms_;
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_ALGORITHM_FILE_H_
