#include "engine/data/sample_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "engine/data/prefetcher.h"

namespace milepost::data {
namespace {

// Sample i is its own number; the first i % 5 of its four targets are valid, at most four.
class Numbers : public SampleSource {
 public:
  const std::vector<Field>& fields() const override { return fields_; }
  int64_t samples() const override { return 100; }
  absl::Status Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const override {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t sample = first + i;
      std::memcpy(into[0] + i * 8, &sample, 8);
      std::memset(into[1] + i * 16, 0xff, 16);
      std::memset(into[1] + i * 16, 0, static_cast<size_t>(Valid(sample) * 4));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> CountTargets(size_t field, int64_t first, int64_t count) const override {
    EXPECT_EQ(field, 1u);
    int64_t targets = 0;
    for (int64_t i = first; i < first + count; ++i) targets += Valid(i);
    return targets;
  }
  absl::Status AddTo(Fingerprint*) const override { return absl::OkStatus(); }
  static int64_t Valid(int64_t sample) { return sample % 5; }

 private:
  std::vector<Field> fields_ = {{.name = "number", .sample_bytes = 8},
                                {.name = "targets", .sample_bytes = 16, .targets = kVaries}};
};

TEST(SampleSource, FixedCountsAreProducts) {
  class Fixed : public Numbers {
   public:
    const std::vector<Field>& fields() const override { return fields_; }
    absl::StatusOr<int64_t> CountTargets(size_t field, int64_t first,
                                         int64_t count) const override {
      return SampleSource::CountTargets(field, first, count);
    }

   private:
    std::vector<Field> fields_ = {{"number", 8, 0}, {"targets", 16, 3}};
  };
  EXPECT_EQ(*Fixed().CountTargets(1, 7, 4), 12);
  EXPECT_FALSE(TargetsVary(Fixed()));
  EXPECT_TRUE(TargetsVary(Numbers()));
}

// Each micro-batch of a step knows the targets of all this rank's micro-batches of that step.
TEST(SampleSource, PrefetcherCountsAStepsTargetsAhead) {
  const BatchLayout layout = {.micro_batch = 2, .accumulation = 3, .rank = 1, .world = 2};
  Prefetcher prefetcher(std::make_shared<Numbers>(), layout, {.depth = 1});
  prefetcher.Start(12);
  for (int64_t step = 1; step < 5; ++step) {
    int64_t expected = 0, most = 0;
    for (int64_t a = 0; a < 3; ++a) {
      int64_t valid = 0;
      for (int64_t i = 0; i < 2; ++i) valid += Numbers::Valid(step * 12 + (a * 2 + 1) * 2 + i);
      expected += valid;
      most = std::max(most, valid);
    }
    for (int64_t a = 0; a < 3; ++a) {
      const auto batch = prefetcher.Next();
      ASSERT_TRUE(batch.ok()) << batch.status();
      EXPECT_EQ((*batch)->step.targets, (std::vector<int64_t>{0, expected}));
      EXPECT_EQ((*batch)->step.most_targets, (std::vector<int64_t>{0, most}));
      int64_t number = 0;
      std::memcpy(&number, (*batch)->fields[0].data() + 8, 8);
      EXPECT_EQ(number, step * 12 + (a * 2 + 1) * 2 + 1);
    }
  }
}

// Whatever the threads do, batches come in order and hold their samples; also when a step's targets
// vary.
TEST(SampleSource, ManyThreadsFetchTheSameBatches) {
  const BatchLayout layout = {.micro_batch = 3, .accumulation = 2, .rank = 1, .world = 2};
  Prefetcher one(std::make_shared<Numbers>(), layout);
  Prefetcher many(std::make_shared<Numbers>(), layout, {.depth = 3, .threads = 5});
  EXPECT_EQ(many.Bytes(), 4 * 3 * 24);
  for (const int64_t start : {0, 24}) {
    one.Start(start);
    many.Start(start);
    for (int i = 0; i < 300; ++i) {
      const auto want = one.Next();
      const auto got = many.Next();
      ASSERT_TRUE(want.ok() && got.ok());
      ASSERT_EQ((*got)->first_sample, (*want)->first_sample);
      ASSERT_EQ((*got)->fields, (*want)->fields);
      ASSERT_EQ((*got)->step.targets, (*want)->step.targets);
      ASSERT_EQ((*got)->step.most_targets, (*want)->step.most_targets);
    }
  }
}

// Every sample from 17 on is bad. Later ones fail at once, the first only after a later one has.
class LateFailure : public Numbers {
 public:
  absl::Status Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const override {
    if (first + count <= 17) return Numbers::Fetch(first, count, into);
    std::unique_lock lock(mutex_);
    if (first > 17) {
      later_failed_ = true;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return later_failed_; });
    }
    return absl::DataLossError(std::to_string(first));
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool later_failed_ = false;
};

TEST(SampleSource, TheFirstErrorIsReportedAfterTheGoodBatches) {
  Prefetcher prefetcher(std::make_shared<LateFailure>(),
                        {.micro_batch = 4, .accumulation = 1, .rank = 0, .world = 1},
                        {.depth = 2, .threads = 4});
  prefetcher.Start(0);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(prefetcher.Next().ok()) << i;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(prefetcher.Next().status().message(), "17");
}

}  // namespace
}  // namespace milepost::data
