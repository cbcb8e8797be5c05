// The head of a language model: logits of a vocabulary, and the loss over them. The loss works in
// chunks of rows, so that logits of the whole batch never exist at once.
//
//   ops::LmHeadLoss(b, "lm", y, wte, b.Targets(), chunk_rows);
//
// kLmHeadLoss:         x[N,C], wte[V,C], targets i32[N], bias[V]|kNoValue -> sums f64[3]
//                      (accumulate; graph::LossHead); gathers: rows without a target are left out
// kLmHeadLossBackward: x, wte, targets, bias|kNoValue, dsum|kNoValue -> sums, dx, dwte,
//                      dbias|kNoValue: forward and backward. Gradients carry the head's weight /
//                      its valid targets in the global batch. dx = dsum + the head's; dsum: what
//                      other consumers of x (the heads after it) added to its gradient. Without
//                      one dx may lie over x: a chunk's dwte comes before its dx. dwte and dbias
//                      may be left out (frozen parameters)
// kLmHeadLogProbs:     x, wte, targets, bias|kNoValue -> log p(target) f32[N]; 0: it has none
// kLmHeadLogProbsBackward: x, wte, targets, bias|kNoValue, dsum|kNoValue, their gradients f32[N]
//                      -> kNoValue, dx, dwte, dbias: as kLmHeadLossBackward's. It makes the logits
//                      once more
// kLmHeadLogits:       x[N,C], wte[V,C], bias[V]|kNoValue -> logits f32[B,V] of ONE position of
//                      each sequence, the same in all: given at run time, so that a window may be
//                      partly filled. Or, with every_row, f32[N,V]
//
// Where tensor ranks divide the vocabulary (plan/passes/vocabulary_pass.h) each has some of its
// columns of the logits, and what it knows of a row goes to the others: the largest logit, the sum
// of exponentials, the target's logit and whether that is the first of the largest
// (classifier_contract.h: LogitsPart). Logits stay where they are made.
// kLmHeadParts:        x, wte[V/T,C], targets, bias[V/T]|kNoValue -> parts f32[N,4], and logits
//                      [N,V/T] where there is one chunk: then they are kept for the backward
// kLmHeadLoss:         x, wte, targets, bias, every rank's parts f32[T,N,4] -> sums. No logits
// kLmHeadLossBackward: x, wte, targets, bias, kNoValue, parts[, logits] -> sums, this rank's part
//                      of dx, dwte, dbias[, the logits' gradient]
//
// The order. One collective of all rows costs its start once, and 16 (T - 1) N bytes; one for each
// chunk would start as often as there are chunks, and each product would wait for it. It needs a
// rank's logits before and behind it: those of one chunk are kept, which takes no more than the
// chunk would; of several chunks they are made once more: 8NCV/T flops instead of 6NCV/T. A chunk
// has T times the rows that it has on one rank. Llama 3 8B with T = 8 and 8192 rows: 263 MB of bf16
// logits, one chunk of a GPU's 512 MiB.
#ifndef MILEPOST_ENGINE_OPS_LM_HEAD_LM_HEAD_H_
#define MILEPOST_ENGINE_OPS_LM_HEAD_LM_HEAD_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

// Adds a loss head, called `name`: the sums. `chunk_rows`: rows of logits that exist at once, in
// [1, N].
graph::ValueId LmHeadLoss(graph::Builder& b, absl::string_view name, graph::ValueId x,
                          graph::ValueId wte, graph::ValueId targets, int64_t chunk_rows,
                          double weight = 1);

// The same over a layer of its own: weight [V,C], bias [V].
graph::ValueId TokenClassifierLoss(graph::Builder& b, absl::string_view name, graph::ValueId x,
                                   graph::ValueId weights, graph::ValueId bias,
                                   graph::ValueId targets, int64_t chunk_rows, double weight = 1);

// The same where few rows have a target: logits of the others are never made.
graph::ValueId MaskedLmHeadLoss(graph::Builder& b, absl::string_view name, graph::ValueId x,
                                graph::ValueId wte, graph::ValueId bias, graph::ValueId targets,
                                int64_t chunk_rows, double weight = 1);

// Of a loss whose vocabulary tensor ranks divide: the op in front of it. `logits`: kept, or none.
graph::Op LmHeadPartsOp(const graph::Op& loss, graph::ValueId parts, graph::ValueId logits);

// For losses that are made of the log-probabilities of whole documents.
graph::ValueId LmHeadLogProbs(graph::Builder& b, absl::string_view name, graph::ValueId x,
                              graph::ValueId wte, graph::ValueId targets, int64_t chunk_rows);

// Sets Graph::logits. `every_row`: they are of all rows.
graph::ValueId LmHeadLogits(graph::Builder& b, absl::string_view name, graph::ValueId x,
                            graph::ValueId wte, graph::ValueId bias = graph::kNoValue,
                            bool every_row = false);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_LM_HEAD_LM_HEAD_H_
