#include "engine/kernels/cuda/libraries/attention_graph.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::kernels::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

AttentionGraph TwoSequences(int64_t documents) {
  return {.shape = {.batch = 2, .sequence = 4, .heads = 4, .head_dim = 8, .kv_heads = 2},
          .max_documents = documents};
}

std::vector<int32_t> Part(const std::vector<int32_t>& tables, int64_t begin, int64_t count) {
  return {tables.begin() + begin, tables.begin() + begin + count};
}

TEST(AttentionGraphTest, TablesCutDocumentsAtTheEndsOfSequences) {
  const AttentionGraph graph = TwoSequences(5);
  const DocumentTables at = DocumentTablesOf(graph);
  std::vector<int32_t> tables(at.entries, -1);
  // The second sequence begins with the id that the first ends with: another document.
  const std::vector<int32_t> ids = {0, 1, 1, 1, 1, 1, 2, 2};
  ASSERT_TRUE(MakeDocumentTables(graph, ids, absl::MakeSpan(tables)).ok());
  EXPECT_THAT(Part(tables, at.lengths, 5), ElementsAre(1, 3, 2, 2, 0));
  const int32_t qkv = 8 * 8, out = 4 * 8;
  EXPECT_THAT(Part(tables, at.qkv_offsets, 6),
              ElementsAre(0, qkv, 4 * qkv, 6 * qkv, 8 * qkv, 8 * qkv));
  EXPECT_THAT(Part(tables, at.out_offsets, 6),
              ElementsAre(0, out, 4 * out, 6 * out, 8 * out, 8 * out));
  EXPECT_THAT(Part(tables, at.lse_offsets, 6), ElementsAre(0, 4, 16, 24, 32, 32));
}

TEST(AttentionGraphTest, PartsBeginAtMultiplesOf64Bytes) {
  const DocumentTables at = DocumentTablesOf(TwoSequences(8));
  for (const int64_t begin : {at.lengths, at.qkv_offsets, at.out_offsets, at.lse_offsets}) {
    EXPECT_EQ(begin % 16, 0);
  }
  EXPECT_GE(at.out_offsets - at.qkv_offsets, 9);
  EXPECT_GE(at.entries - at.lse_offsets, 9);
}

TEST(AttentionGraphTest, MoreDocumentsThanPlannedAreAnError) {
  const AttentionGraph graph = TwoSequences(3);
  std::vector<int32_t> tables(DocumentTablesOf(graph).entries);
  const std::vector<int32_t> ids = {0, 1, 1, 1, 1, 1, 2, 2};
  const absl::Status status = MakeDocumentTables(graph, ids, absl::MakeSpan(tables));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("more than 3 documents"));
}

TEST(AttentionGraphTest, WrongSizesAreErrors) {
  const AttentionGraph graph = TwoSequences(3);
  std::vector<int32_t> tables(DocumentTablesOf(graph).entries);
  const std::vector<int32_t> ids(7);
  EXPECT_EQ(MakeDocumentTables(graph, ids, absl::MakeSpan(tables)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(AttentionGraphTest, RefusesWhatCudnnCannotBeAsked) {
  AttentionGraph graph = TwoSequences(0);
  EXPECT_TRUE(CheckAttentionGraph(graph).ok());
  graph.type = DType::kF32;
  EXPECT_THAT(CheckAttentionGraph(graph).message(), HasSubstr("fp32"));
  graph = TwoSequences(0);
  graph.shape.head_dim = 256;
  EXPECT_TRUE(CheckAttentionGraph(graph).ok());
  graph.shape.head_dim = 264;
  EXPECT_THAT(CheckAttentionGraph(graph).message(), HasSubstr("at most 256"));
  graph = TwoSequences(9);
  EXPECT_THAT(CheckAttentionGraph(graph).message(), HasSubstr("max_documents is 9"));
  graph = TwoSequences(9);
  graph.shape = {.batch = 1 << 10, .sequence = 1 << 13, .heads = 32, .head_dim = 128};
  EXPECT_THAT(CheckAttentionGraph(graph).message(), HasSubstr("smaller micro-batch"));
}

// cuDNN multiplies the offsets by the heads of queries for each of keys.
TEST(AttentionGraphTest, OffsetsOfGroupedHeadsAreCountedForEachOfTheGroup) {
  AttentionGraph graph{
      .shape = {.batch = 16, .sequence = 8192, .heads = 32, .head_dim = 128, .kv_heads = 8},
      .max_documents = 64};
  ASSERT_LT(graph.Rows() * graph.QkvWidth(), int64_t{1} << 31);
  EXPECT_THAT(CheckAttentionGraph(graph).message(), HasSubstr("3221225472 elements"));
  graph.shape.batch = 8;
  EXPECT_EQ(CheckAttentionGraph(graph), absl::OkStatus());
}

TEST(AttentionGraphTest, APartOfTheHeadsLiesInRowsOfAll) {
  AttentionGraph graph = TwoSequences(5);
  graph.row_kv_heads = 3;
  EXPECT_EQ(graph.QkvWidth(), (6 + 2 * 3) * 8);
  EXPECT_EQ(graph.OutWidth(), 6 * 8);
  EXPECT_EQ(CheckAttentionGraph(graph), absl::OkStatus());
  EXPECT_FALSE(graph == TwoSequences(5));
  graph.max_documents = 0;
  EXPECT_THAT(CheckAttentionGraph(graph).message(), HasSubstr("one sequence"));
  graph.shape.batch = 1;
  EXPECT_EQ(CheckAttentionGraph(graph), absl::OkStatus());
  graph.row_kv_heads = 1;
  EXPECT_THAT(CheckAttentionGraph(graph).message(), HasSubstr("2 heads of keys in rows of 1"));
}

}  // namespace
}  // namespace milepost::kernels::cuda
