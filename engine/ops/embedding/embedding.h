// The sum of table rows that a text model begins with.
//
//   const ValueId x = ops::Embedding(b, "wte.out", b.Tokens(), wte, {.wpe = wpe}, dropout);
//
// kEmbedding:         tokens i32[N], wte[V,C], wpe[P,C]|kNoValue, positions i32[N]|kNoValue,
//                     wse[S,C]|kNoValue, segments i32[N]|kNoValue -> x[N,C], with dropout. A row's
//                     position is positions', or its place in the sequence. Its segment is
//                     segments', or 0.
// kEmbeddingBackward: tokens, dx[N,C], positions, segments -> dwte, dwpe, dwse (the last four or
//                     kNoValue)
//
// Where tensor ranks divide wte's rows (plan/passes/vocabulary_pass.h):
// kTokenRows:         tokens, wte[V/T,C] -> rows[N,C]: the tokens' own, zeros where another rank
//                     has them
// kEmbedding:         has the ranks' sum of these as its last input, and reads it instead of wte:
//                     so the other tables are added once, and each number is that of one rank, to
//                     the bit. Its gradient of wte has this rank's rows.
#ifndef MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_H_
#define MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_H_

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

// Tables beside the tokens', and the rows that they are read at. kNoValue: none.
struct EmbeddingTables {
  graph::ValueId wpe = graph::kNoValue;        // [P,C]
  graph::ValueId positions = graph::kNoValue;  // i32[N], each below P; kNoValue: BuilderOptions'
  graph::ValueId wse = graph::kNoValue;        // [S,C]
  graph::ValueId segments = graph::kNoValue;   // i32[N], each below S
};

// Of an embedding whose wte tensor ranks divide: the op in front of the sum.
graph::Op TokenRowsOp(const graph::Op& embedding, graph::ValueId rows);

graph::ValueId Embedding(graph::Builder& b, absl::string_view name, graph::ValueId tokens,
                         graph::ValueId wte, const EmbeddingTables& tables, double dropout);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_EMBEDDING_EMBEDDING_H_
