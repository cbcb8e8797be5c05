// Token + position embedding, T in {float, bf16}. N = batch * sequence rows.
//
//   EmbeddingForward<bf16>(tokens, wte, wpe, batch, sequence, width, DropoutParams{}, x);
#ifndef MILEPOST_ENGINE_KERNELS_CPU_EMBEDDING_H_
#define MILEPOST_ENGINE_KERNELS_CPU_EMBEDDING_H_

#include <cstdint>

#include "engine/kernels/cpu/random.h"
#include "engine/kernels/cpu/types.h"

namespace milepost::kernels {

// out[b,t,:] = dropout(wte[tokens[b,t],:] + wpe[t,:]). tokens[N] must lie inside wte (the data
// loader checks); wpe has at least `sequence` rows, or is null: no positions.
template <typename T>
void EmbeddingForward(const int32_t* tokens, const T* wte, const T* wpe, int64_t batch,
                      int64_t sequence, int64_t width, const DropoutParams& dropout, T* out);

// dwte[tokens[b,t],:] += g, dwpe[t,:] += g with g = dropout mask * dy[b,t,:]. Rows are added in the
// order of N, whatever the thread count. accumulate == false first zeroes dwte[vocabulary,width]
// and dwpe[positions,width]. Either output may be null: then it is not computed. No workspace.
template <typename T>
void EmbeddingBackward(const int32_t* tokens, const T* dy, int64_t batch, int64_t sequence,
                       int64_t width, int64_t vocabulary, int64_t positions,
                       const DropoutParams& dropout, bool accumulate, float* dwte, float* dwpe);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_EMBEDDING_H_
