// The samples of a run, or of a validation set, as the arrays that a model's inputs are filled
// with.
//
//   const auto& fields = source.fields();            // "tokens", "targets"
//   std::vector<char*> into = ...;                   // fields[f].sample_bytes * count each
//   MP_RETURN_IF_ERROR(source.Fetch(first, count, into));
//
// Immutable, but for its statistics, and thread-safe.
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
// So many pointers to fields are held without an allocation: those of a text with seven heads.
inline constexpr size_t kInlineFields = 12;

// One array of every sample, all of one size.
struct Field {
  std::string name;  // of the graph's input
  int64_t sample_bytes = 0;
  // Where these are targets (i32, -1: ignored): how many of them are valid in every sample, or
  // kVaries. 0: no targets.
  int64_t targets = 0;
};

// What fetching has cost since the source was opened, over all threads.
struct SourceStats {
  int64_t samples = 0;      // fetched
  int64_t bytes_read = 0;   // of files, as they are stored
  int64_t damaged = 0;      // samples that another one stands for, as theirs could not be decoded
  double busy_seconds = 0;  // in Fetch, added up over the threads
  std::shared_ptr<const std::string> first_damage;  // file and reason; null: none
};

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual const std::vector<Field>& fields() const = 0;
  // Of one epoch. Fetch of a training source goes on after them; that of a validation source not.
  virtual int64_t samples() const = 0;
  // Samples [first, first + count) of the source's order; `into` has one destination for each
  // field, for `count` samples one after the other, aligned for its elements. The samples depend on
  // nothing but their numbers. Blocks on the disk. INVALID_ARGUMENT with file and place for bad
  // data.
  virtual absl::Status Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const = 0;
  // Valid targets of the field in those samples. Needed, and more than a product, only where they
  // vary.
  virtual absl::StatusOr<int64_t> CountTargets(size_t field, int64_t first, int64_t count) const;
  // Packed documents in those samples, cut at the ends of samples. Reads the samples; 0 where the
  // source knows of no documents.
  virtual absl::StatusOr<int64_t> CountDocuments(int64_t first, int64_t count) const;
  // Adds what the files hold (fingerprint.h), in whatever form they have it and wherever they lie.
  // Blocks on the disk, for some 64 small reads; of a mixture of many files at least 4 of each.
  // Errors as Fetch.
  virtual absl::Status AddTo(Fingerprint* print) const = 0;
  // All zero where a sample costs next to nothing.
  virtual SourceStats stats() const { return {}; }
};

// Valid targets of the field in those samples, one by one: for sources whose samples are cheap.
absl::StatusOr<int64_t> CountByFetching(const SampleSource& source, size_t field, int64_t first,
                                        int64_t count);

// Whether a step's ranks have to tell each other how many valid targets they have.
bool TargetsVary(const SampleSource& source);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_SAMPLE_SOURCE_H_
