// What cuDNN's attention is asked for, and the tables that tell it of packed documents. Pure: no
// CUDA needed.
//
//   AttentionGraph graph{.shape = {.batch = 4, .sequence = 1024, .heads = 12, .head_dim = 64},
//                        .max_documents = 64};
//   std::vector<int32_t> tables(DocumentTablesOf(graph).entries);       // uploaded with the ids
//   MP_RETURN_IF_ERROR(MakeDocumentTables(graph, ids, absl::MakeSpan(tables)));
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_ATTENTION_GRAPH_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_ATTENTION_GRAPH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/dtype/half.h"
#include "engine/ops/attention/attention_contract.h"

namespace milepost::kernels::cuda {

struct AttentionGraph {
  AttentionShape shape;       // ops/attention/attention_cpu_kernel.h: the op's layouts
  DType type = DType::kBf16;  // or kF16
  // Packed documents: at most so many in a micro-batch, each of them cut at the ends of sequences;
  // 0: every sequence is one. cuDNN takes the documents for the batch, so that no work is done
  // between them.
  int64_t max_documents = 0;
  // The backward's sums in one order: the same inputs, the same bits. Faster without.
  bool deterministic = true;
  // Of what is only a part of the heads: how many there are of keys in a row; 0: the shape's. Every
  // one has as many of queries as in the shape.
  int64_t row_kv_heads = 0;

  int64_t KvHeads() const { return shape.kv_heads > 0 ? shape.kv_heads : shape.heads; }
  int64_t Group() const { return shape.heads / KvHeads(); }
  int64_t RowKvHeads() const { return row_kv_heads > 0 ? row_kv_heads : KvHeads(); }
  int64_t RowHeads() const { return RowKvHeads() * Group(); }
  int64_t Rows() const { return shape.batch * shape.sequence; }
  int64_t QkvWidth() const { return (RowHeads() + 2 * RowKvHeads()) * shape.head_dim; }
  int64_t OutWidth() const { return RowHeads() * shape.head_dim; }
};

bool operator==(const AttentionGraph& a, const AttentionGraph& b);

enum class AttentionPass : uint8_t { kForward, kBackward };

// INVALID_ARGUMENT for sizes that make no attention, or that cuDNN cannot be asked for: fp32;
// documents with more than 2^31 - 1 elements of qkv, times heads of queries for each of keys; a
// part of the heads of several sequences without documents.
absl::Status CheckAttentionGraph(const AttentionGraph& graph);

// Where the tables begin in one buffer of `entries` int32, at multiples of 16 entries. M is
// max_documents; unused documents have length 0.
struct DocumentTables {
  int64_t lengths = 0;      // [M] rows
  int64_t qkv_offsets = 0;  // [M+1] elements from qkv's begin to the document's
  int64_t out_offsets = 0;  // [M+1] the same of out
  int64_t lse_offsets = 0;  // [M+1] the same of lse, [N,H] where there are documents
  int64_t entries = 0;
};
DocumentTables DocumentTablesOf(const AttentionGraph& graph);

// `ids`: [batch, sequence] as kAttention's documents. RESOURCE_EXHAUSTED where they are more than
// max_documents, INVALID_ARGUMENT for wrong sizes.
absl::Status MakeDocumentTables(const AttentionGraph& graph, absl::Span<const int32_t> ids,
                                absl::Span<int32_t> tables);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_ATTENTION_GRAPH_H_
