// What of attention is cuDNN's on a GPU, in which calls, and with how much scratch: pure, so that
// plans are the same on machines without it.
//
//   const LibraryAttention found = LibraryAttentionOf({.batch = 4, .sequence = 8192, .heads = 32,
//       .kv_heads = 8, .head_dim = 128, .element_bytes = 2},
// plan::PlanOptions::attention_call_bytes);
//   if (found.taken) ...        // found.sequences x found.kv_heads a call of the backward
//
// cuDNN's deterministic backward (9.19, all devices but compute capability 10.x) keeps the gradient
// of all probabilities of a call: sequence x sequence numbers for each head of each sequence, and
// with packed documents, which are its sequences, for each planned document. Sequences, and heads
// with others' keys, have nothing to do with each other: the backward is made of calls of a part of
// them, as large as kAttentionCallBytes allows, with the same results. The other backward
// (`train.determinism: fast`) keeps sums of the queries' gradients in fp32 instead and is one
// call; its results differ in the last bits from run to run.
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_LIBRARY_ATTENTION_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_LIBRARY_ATTENTION_H_

#include <algorithm>
#include <cstdint>

namespace milepost::ops {

// Of probabilities' gradients in one call, where it can be split: 256 heads at 1024 positions, 4 at
// 8192. That is thousands of tiles of 128 x 128, more than a GPU has room for at once, so that
// further sequences in the call would not make it faster.
inline constexpr int64_t kAttentionCallBytes = int64_t{512} << 20;
// The most that a call that cannot be split may have, a tenth of a GPU with 80 GiB; the own kernels
// are taken where it is more.
inline constexpr int64_t kMostAttentionCallBytes = int64_t{8} << 30;

// How many packed documents the library's attention is planned for, over a micro-batch: four a
// sequence, and one for every 128 positions. A micro-batch with more takes the own kernels.
constexpr int64_t PlannedDocuments(int64_t batch, int64_t sequence) {
  return batch * std::min(sequence, 4 + (sequence + 127) / 128);
}

struct LibraryAttentionSizes {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t element_bytes = 0;  // 4: fp32, which cuDNN's attention does not take
  bool documents = false;
  int64_t query_parts = 1;  // more: of each head a part of the queries, which cuDNN does not take
  bool exact = true;
};

struct LibraryAttention {
  bool taken = false;  // both passes; else the own kernels, and the rest means nothing
  // Of a call of the backward: divisors of batch and of kv_heads. All heads where it is several
  // sequences; all sequences where there are documents.
  int64_t sequences = 0;
  int64_t kv_heads = 0;
  // Scratch of the forward, and of one call of the backward, at least what cuDNN 9.19 says.
  int64_t forward_bytes = 0;
  int64_t backward_bytes = 0;
};

// `call_bytes`: PlanOptions::attention_call_bytes, kAttentionCallBytes but in tests.
LibraryAttention LibraryAttentionOf(const LibraryAttentionSizes& sizes, int64_t call_bytes);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_LIBRARY_ATTENTION_H_
