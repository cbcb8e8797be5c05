#include "engine/kernels/cuda/libraries/attention_graph.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::kernels::cuda {
namespace {

constexpr int64_t kAlignment = 16;  // entries; 64 bytes

int64_t Align(int64_t entries) { return (entries + kAlignment - 1) / kAlignment * kAlignment; }

// cuDNN multiplies the offsets of qkv for the gradients of keys by head of queries.
absl::Status CheckOffsets(const AttentionGraph& graph) {
  const int64_t elements = graph.Rows() * graph.QkvWidth() * graph.Group();
  if (graph.max_documents == 0 || elements <= std::numeric_limits<int32_t>::max()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("packed documents of ", elements, " elements of qkv, counted for each of ",
                   graph.Group(), " heads of queries that share keys; cuDNN's offsets reach ",
                   "2^31 - 1: use a smaller micro-batch"));
}

absl::Status CheckPart(const AttentionGraph& graph) {
  if (graph.RowKvHeads() < graph.KvHeads()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention of ", graph.KvHeads(), " heads of keys in rows of ", graph.RowKvHeads()));
  }
  // cuDNN reads the log-sum-exp of whole sequences only.
  if (graph.RowKvHeads() > graph.KvHeads() && graph.max_documents == 0 && graph.shape.batch > 1) {
    return absl::InvalidArgumentError(
        "attention of a part of the heads takes one sequence, or documents");
  }
  return absl::OkStatus();
}

}  // namespace

bool operator==(const AttentionGraph& a, const AttentionGraph& b) {
  return a.shape.batch == b.shape.batch && a.shape.sequence == b.shape.sequence &&
         a.shape.heads == b.shape.heads && a.shape.head_dim == b.shape.head_dim &&
         a.KvHeads() == b.KvHeads() && a.shape.causal == b.shape.causal &&
         a.shape.window == b.shape.window && a.shape.queries.parts == b.shape.queries.parts &&
         a.type == b.type && a.max_documents == b.max_documents &&
         a.deterministic == b.deterministic && a.RowKvHeads() == b.RowKvHeads();
}

absl::Status CheckAttentionGraph(const AttentionGraph& graph) {
  MP_RETURN_IF_ERROR(CheckAttentionShape(graph.shape));
  if (graph.type == DType::kF32) {
    return absl::InvalidArgumentError("cuDNN's attention takes bf16 and f16, not fp32");
  }
  if (graph.max_documents < 0 || graph.max_documents > graph.Rows()) {
    return absl::InvalidArgumentError(absl::StrCat("max_documents is ", graph.max_documents,
                                                   "; there are ", graph.Rows(), " rows"));
  }
  MP_RETURN_IF_ERROR(CheckOffsets(graph));
  MP_RETURN_IF_ERROR(CheckPart(graph));
  return absl::OkStatus();
}

DocumentTables DocumentTablesOf(const AttentionGraph& graph) {
  const int64_t lengths = Align(graph.max_documents);
  const int64_t offsets = Align(graph.max_documents + 1);
  return {.lengths = 0,
          .qkv_offsets = lengths,
          .out_offsets = lengths + offsets,
          .lse_offsets = lengths + 2 * offsets,
          .entries = lengths + 3 * offsets};
}

absl::Status MakeDocumentTables(const AttentionGraph& graph, absl::Span<const int32_t> ids,
                                absl::Span<int32_t> tables) {
  MP_RETURN_IF_ERROR(CheckAttentionGraph(graph));
  const DocumentTables at = DocumentTablesOf(graph);
  if (static_cast<int64_t>(ids.size()) != graph.Rows() ||
      static_cast<int64_t>(tables.size()) != at.entries) {
    return absl::InvalidArgumentError(absl::StrCat("document tables: ", ids.size(), " ids and ",
                                                   tables.size(), " entries; expected ",
                                                   graph.Rows(), " and ", at.entries));
  }
  std::fill(tables.begin(), tables.end(), 0);
  int64_t document = 0;
  const auto begin_at = [&](int64_t index, int64_t row) {
    tables[at.qkv_offsets + index] = static_cast<int32_t>(row * graph.QkvWidth());
    tables[at.out_offsets + index] = static_cast<int32_t>(row * graph.OutWidth());
    tables[at.lse_offsets + index] = static_cast<int32_t>(row * graph.RowHeads());
  };
  int64_t begin = 0;
  for (int64_t row = 1; row <= graph.Rows(); ++row) {
    const bool ends =
        row == graph.Rows() || row % graph.shape.sequence == 0 || ids[row] != ids[row - 1];
    if (!ends) continue;
    if (document == graph.max_documents) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a micro-batch has more than ", graph.max_documents,
                       " documents, which is what its attention was planned for"));
    }
    begin_at(document, begin);
    tables[at.lengths + document++] = static_cast<int32_t>(row - begin);
    begin = row;
  }
  for (; document <= graph.max_documents; ++document) begin_at(document, graph.Rows());
  return absl::OkStatus();
}

}  // namespace milepost::kernels::cuda
