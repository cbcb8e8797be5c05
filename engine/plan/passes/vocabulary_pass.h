// Tensor parallelism: divides the vocabulary among tensor ranks, in a graph without a backward
// (Shoeybi et al., "Megatron-LM", 2019: VocabParallelEmbedding, vocab_parallel_cross_entropy).
//
//   DivideVocabulary(graph, /*ranks=*/2);    // tensor_pass.h does
//
// A table of V rows that embeddings and heads of a language model read, and nothing else does, is
// divided by rows, tied or not; the head's bias likewise. Of T ranks each has ceil(V / T) rows,
// rounded up to a multiple of 8 (what a GPU's products want): rank t those from t times that on. Of
// the last ranks' rows those beyond V are padding: zeros, which nothing reads. So any V can be
// divided.
//
// An embedding becomes kTokenRows, their sum (kTensorReduce) and the rest of it. In front of a loss
// come kLmHeadParts and kTensorGather (ops/lm_head/lm_head.h), and in its backward the sum of what
// the ranks make of the gradient of x.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_VOCABULARY_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_VOCABULARY_PASS_H_

#include "engine/graph/graph.h"

namespace milepost::plan {

// A graph without such a table stays as it is. Tables that another op reads stay whole.
void DivideVocabulary(graph::Graph& graph, int64_t ranks);

// Rows of the table that each of `ranks` has.
int64_t VocabularyRows(int64_t vocabulary, int64_t ranks);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_VOCABULARY_PASS_H_
