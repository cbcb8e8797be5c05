#include "engine/data/text_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace milepost::data {
namespace {

using ::testing::ElementsAre;

// Samples that follow each other in a list of tokens; targets are shifted by one.
class ListSource : public SampleSource {
 public:
  ListSource(std::vector<int32_t> tokens, int64_t length)
      : tokens_(std::move(tokens)), length_(length) {
    fields_ = {{.name = "tokens", .sample_bytes = length * 4},
               {.name = "targets", .sample_bytes = length * 4, .targets = length}};
  }
  const std::vector<Field>& fields() const override { return fields_; }
  int64_t samples() const override { return (static_cast<int64_t>(tokens_.size()) - 1) / length_; }
  absl::Status Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const override {
    for (int64_t i = 0; i < count; ++i) {  // an endless repetition: epochs
      const int32_t* from = tokens_.data() + (first + i) % samples() * length_;
      std::memcpy(into[0] + i * length_ * 4, from, length_ * 4);
      std::memcpy(into[1] + i * length_ * 4, from + 1, length_ * 4);
    }
    return absl::OkStatus();
  }
  absl::Status AddTo(Fingerprint* print) const override {
    print->Add(tokens_);
    return absl::OkStatus();
  }

 private:
  std::vector<int32_t> tokens_;
  int64_t length_;
  std::vector<Field> fields_;
};

using Arrays = std::vector<std::vector<int32_t>>;

Arrays FetchAll(const SampleSource& source, int64_t first, int64_t count) {
  Arrays arrays;
  std::vector<char*> into;
  for (const Field& field : source.fields()) {
    arrays.emplace_back(field.sample_bytes / 4 * count);
    into.push_back(nullptr);
  }
  for (size_t i = 0; i < into.size(); ++i) into[i] = reinterpret_cast<char*>(arrays[i].data());
  EXPECT_EQ(source.Fetch(first, count, into), absl::OkStatus());
  return arrays;
}

TextSource Of(std::vector<int32_t> tokens, int64_t length, const TextOptions& options) {
  return TextSource(std::make_shared<ListSource>(std::move(tokens), length), options);
}

TEST(TextSource, CutsDocumentsAndRestartsPositions) {
  // 9 ends a document.
  const TextSource source =
      Of({1, 2, 9, 3, 9, 9, 4, 5, 6}, 8, {.vocabulary = 10, .document_separator = 9});
  ASSERT_EQ(source.fields().size(), 4u);
  EXPECT_EQ(source.fields()[2].name, "documents");
  EXPECT_EQ(source.fields()[3].name, "positions");
  const Arrays a = FetchAll(source, 0, 1);
  EXPECT_THAT(a[0], ElementsAre(1, 2, 9, 3, 9, 9, 4, 5));
  EXPECT_THAT(a[1], ElementsAre(2, 9, -1, 9, -1, -1, 5, 6));
  EXPECT_THAT(a[2], ElementsAre(0, 0, 0, 1, 1, 2, 3, 3));
  EXPECT_THAT(a[3], ElementsAre(0, 1, 2, 0, 1, 0, 0, 1));
  EXPECT_EQ(*source.CountTargets(1, 0, 1), 5);
}

TEST(TextSource, PaddingIsADocumentWithoutTargets) {
  const TextSource source = Of({1, 2, 0, 0, 3, 0, 0}, 6, {.vocabulary = 10, .padding = 0});
  const Arrays a = FetchAll(source, 0, 1);
  EXPECT_THAT(a[1], ElementsAre(2, -1, -1, -1, -1, -1));
  EXPECT_THAT(a[2], ElementsAre(0, 0, 1, 1, 2, 3));
  EXPECT_THAT(a[3], ElementsAre(0, 1, 0, 1, 0, 0));
  EXPECT_EQ(*source.CountTargets(1, 0, 1), 1);
}

// As the ids say: a document ends with its sample.
// Those that follow each other, where both have a target.
TEST(TextSource, PairsDocuments) {
  // 9 ends a document; the second sample's third document has no other to be with, nor a target.
  const TextSource source = Of({1, 2, 9, 3, 9, 4, 9, 5, 9, 9,  //
                                1, 9, 2, 9, 9, 9, 4, 9, 5, 9, 6},
                               10, {.vocabulary = 10, .document_separator = 9, .pairs = true});
  ASSERT_EQ(source.fields().size(), 5u);
  EXPECT_EQ(source.fields()[4].name, "pairs");
  EXPECT_EQ(source.fields()[4].targets, kVaries);
  const Arrays a = FetchAll(source, 0, 2);
  EXPECT_THAT(std::vector<int32_t>(a[4].begin(), a[4].begin() + 10),
              ElementsAre(0, -1, -1, -1, -1, 0, -1, -1, -1, -1));
  EXPECT_THAT(std::vector<int32_t>(a[4].begin() + 10, a[4].end()),
              ElementsAre(0, -1, -1, -1, -1, -1, 0, -1, -1, -1));
  EXPECT_EQ(*source.CountTargets(4, 0, 2), 4);
  // What has no target is passed over.
  const TextSource odd = Of({1, 9, 9, 2, 9, 3, 9, 4, 9, 9, 1}, 10,
                            {.vocabulary = 10, .document_separator = 9, .pairs = true});
  EXPECT_THAT(FetchAll(odd, 0, 1)[4], ElementsAre(-1, -1, -1, 0, -1, -1, -1, -1, -1, -1));
}

TEST(TextSource, APairThatMayBeCutIsRefused) {
  const TextSource source = Of({1, 9, 2, 9, 3, 4, 9, 5, 6, 9, 1}, 5,
                               {.vocabulary = 10, .document_separator = 9, .pairs = true});
  std::vector<std::vector<char>> arrays(5, std::vector<char>(5 * 4));
  std::vector<char*> into;
  for (auto& array : arrays) into.push_back(array.data());
  EXPECT_THAT(std::string(source.Fetch(0, 1, into).message()),
              ::testing::HasSubstr("sample 0 ends within a document"));
  EXPECT_EQ(source.Fetch(1, 1, into), absl::OkStatus());
}

TEST(TextSource, CountsDocuments) {
  const std::vector<int32_t> tokens = {1, 9, 9, 3, 0, 0, 4, 9, 5, 6, 7, 8, 0, 2, 9, 1, 3};
  for (const std::optional<int32_t>& padding : {std::optional<int32_t>(), std::optional(0)}) {
    const TextSource source =
        Of(tokens, 4, {.vocabulary = 10, .document_separator = 9, .padding = padding});
    for (int64_t first = 0; first < 4; ++first) {
      for (int64_t count = 1; first + count <= 5; ++count) {  // also into the next epoch
        const std::vector<int32_t> ids = FetchAll(source, first, count)[2];
        int64_t want = 0;
        for (int64_t i = 0; i < count; ++i) want += ids[i * 4 + 3] + 1;
        EXPECT_EQ(*source.CountDocuments(first, count), want) << first << ", " << count;
      }
    }
  }
  EXPECT_EQ(*Of(tokens, 4, {.vocabulary = 10}).CountDocuments(0, 4), 0);
}

TEST(TextSource, CountsSegmentsWithinDocuments) {
  TextOptions options{.vocabulary = 10, .segment_separator = 7, .segments = 3};
  const std::vector<int32_t> tokens = {1, 7, 2, 7, 3, 7, 4, 9, 5, 7, 6, 0};
  TextSource source = Of(tokens, 11, options);
  ASSERT_EQ(source.fields().size(), 3u);
  EXPECT_EQ(source.fields()[1].targets, 11);  // all valid
  EXPECT_EQ(*source.CountTargets(1, 0, 2), 22);
  EXPECT_THAT(FetchAll(source, 0, 1)[2], ElementsAre(0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 2));
  options.document_separator = 9;
  EXPECT_THAT(FetchAll(Of(tokens, 11, options), 0, 1)[4],
              ElementsAre(0, 0, 1, 1, 2, 2, 2, 2, 0, 0, 1));
}

TextOptions Masked(double probability, const std::vector<int32_t>& special = {}) {
  return {
      .vocabulary = 1000,
      .seed = 5,
      .masking = Masking{.probability = probability, .mask_token = 999, .special_tokens = special}};
}

std::vector<int32_t> Counting(int64_t n) {
  std::vector<int32_t> tokens(n + 1);
  for (int64_t i = 0; i <= n; ++i) tokens[i] = static_cast<int32_t>(i % 900);
  return tokens;
}

// The shares of Devlin et al., within 4 standard deviations.
TEST(TextSource, MasksAsDevlin) {
  constexpr int64_t kLength = 500, kSamples = 200;
  const auto tokens = Counting(kLength * kSamples);
  const TextSource source = Of(tokens, kLength, Masked(0.15));
  const Arrays a = FetchAll(source, 0, kSamples);
  int64_t chosen = 0, masked = 0, kept = 0, random = 0;
  std::set<int32_t> drawn;
  for (size_t i = 0; i < a[0].size(); ++i) {
    if (a[1][i] < 0) {
      ASSERT_EQ(a[0][i], tokens[i]);
      continue;
    }
    ASSERT_EQ(a[1][i], tokens[i]);
    ++chosen;
    if (a[0][i] == 999) {
      ++masked;
    } else if (a[0][i] == tokens[i]) {
      ++kept;
    } else {
      ++random;
      drawn.insert(a[0][i]);
    }
  }
  EXPECT_NEAR(static_cast<double>(chosen), 15000, 4 * 113);
  const auto share = [&](int64_t n) {
    return static_cast<double>(n) / static_cast<double>(chosen);
  };
  EXPECT_NEAR(share(masked), 0.8, 0.014);
  EXPECT_NEAR(share(kept), 0.1, 0.01);
  EXPECT_NEAR(share(random), 0.1, 0.01);
  EXPECT_GT(drawn.size(), 600u);  // 1500 draws of 1000 ids
  EXPECT_LT(*drawn.rbegin(), 1000);
  EXPECT_EQ(*source.CountTargets(1, 0, kSamples), chosen);
}

TEST(TextSource, DrawsBySampleAlone) {
  const TextSource source = Of(Counting(400), 100, Masked(0.3));
  const Arrays all = FetchAll(source, 0, 8);
  for (int64_t first : {1, 2, 6}) {  // however a batch is cut
    const Arrays part = FetchAll(source, first, 2);
    for (size_t field : {0, 1}) {
      const auto from = all[field].begin() + first * 100;
      EXPECT_EQ(part[field], std::vector<int32_t>(from, from + 200));
    }
  }
  // Sample 4 is sample 0 again, in the next epoch: masked anew.
  EXPECT_NE(FetchAll(source, 0, 1)[1], FetchAll(source, 4, 1)[1]);
  EXPECT_NE(FetchAll(source, 0, 1)[1], FetchAll(source, 1, 1)[1]);
  TextOptions other = Masked(0.3);
  other.pass = MaskingPass::kValidation;
  EXPECT_NE(FetchAll(Of(Counting(400), 100, other), 0, 1)[1], FetchAll(source, 0, 1)[1]);
  other = Masked(0.3);
  other.seed = 6;
  EXPECT_NE(FetchAll(Of(Counting(400), 100, other), 0, 1)[1], FetchAll(source, 0, 1)[1]);
}

TEST(TextSource, NeverMasksWhatIsSpecial) {
  TextOptions options = Masked(1, {3, 4});
  options.document_separator = 5;
  options.padding = 6;
  options.segment_separator = 7;
  options.segments = 2;
  const TextSource source = Of({1, 2, 3, 4, 5, 6, 7, 8, 9}, 8, options);
  const Arrays a = FetchAll(source, 0, 1);
  EXPECT_THAT(a[1], ElementsAre(1, 2, -1, -1, -1, -1, -1, 8));
  EXPECT_THAT(a[2], ElementsAre(0, 0, 0, 0, 0, 1, 2, 2));  // of the tokens as they were
  EXPECT_EQ(*source.CountTargets(1, 0, 1), 3);
}

}  // namespace
}  // namespace milepost::data
