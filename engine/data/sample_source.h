// The samples of a run, or of a validation set, as arrays that fill a model's inputs.
//
//   const auto& fields = source.fields();            // "tokens", "targets"
//   std::vector<char*> into = ...;                   // fields[f].sample_bytes * count each
//   MP_RETURN_IF_ERROR(source.Fetch(first, count, into));
//
// Immutable, except for its statistics, and thread-safe.
#ifndef MILEPOST_ENGINE_DATA_SAMPLE_SOURCE_H_
#define MILEPOST_ENGINE_DATA_SAMPLE_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/fingerprint.h"

namespace milepost::data {

inline constexpr int64_t kVaries = -1;
// This many pointers to fields are held without an allocation: enough for a text with seven heads.
inline constexpr size_t kInlineFields = 12;

// One array of each sample. It has the same size in every sample.
struct Field {
  std::string name;  // the graph input's name
  int64_t sample_bytes = 0;
  // For targets (i32, -1 is ignored): how many of them are valid in every sample, or kVaries. 0:
  // the field has no targets.
  int64_t targets = 0;
};

// The cost of fetching since the source was opened, over all threads.
struct SourceStats {
  int64_t samples = 0;      // fetched
  int64_t bytes_read = 0;   // of files, in stored form
  int64_t damaged = 0;      // samples replaced because they could not be decoded
  double busy_seconds = 0;  // in Fetch, added up over the threads
  std::shared_ptr<const std::string> first_damage;  // file and reason; null: none
};

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual const std::vector<Field>& fields() const = 0;
  // The number of samples of one epoch. A training source's Fetch goes on beyond it; a validation
  // source's does not.
  virtual int64_t samples() const = 0;
  // Reads samples [first, first + count) of the source's order. `into` has one destination for each
  // field, for `count` samples one after the other, aligned for its elements. The samples depend
  // only on their numbers. Blocks on the disk. INVALID_ARGUMENT, with file and place: the data is
  // bad.
  virtual absl::Status Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const = 0;
  // The number of the field's valid targets in those samples. It is needed, and costs more than a
  // product, only where the number varies.
  virtual absl::StatusOr<int64_t> CountTargets(size_t field, int64_t first, int64_t count) const;
  // The number of packed documents in those samples, cut at the ends of samples. Reads the samples.
  // 0: the source has no documents.
  virtual absl::StatusOr<int64_t> CountDocuments(int64_t first, int64_t count) const;
  // Adds what the files hold (fingerprint.h), whatever their form and wherever they lie. Blocks on
  // the disk for about 64 small reads. A mixture of many files makes at least 4 for each. Errors
  // are Fetch's.
  virtual absl::Status AddTo(Fingerprint* print) const = 0;
  // All zero when a sample costs almost nothing.
  virtual SourceStats stats() const { return {}; }
};

// Counts the field's valid targets one by one, for sources whose samples are cheap.
absl::StatusOr<int64_t> CountByFetching(const SampleSource& source, size_t field, int64_t first,
                                        int64_t count);

// True when the ranks of a step must tell each other how many valid targets they have.
bool TargetsVary(const SampleSource& source);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_SAMPLE_SOURCE_H_
