// Routing rows to experts and back, on the CPU (experts.h has the definitions). T: float, f16,
// bf16. Parallel over rows; results do not depend on the thread count.
#ifndef MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"
#include "engine/ops/experts/experts_contract.h"

namespace milepost::kernels {

// logits [rows, experts] -> weights, chosen, slots [rows, per_token], offsets [experts + 1]. A NaN
// is the smallest number of all, and makes its row's weights NaNs. Rows from `counted` on are of no
// expert: they lie behind the others.
template <typename T>
void RouteExperts(const ExpertRouting& routing, int64_t counted, const T* logits, float* weights,
                  int32_t* chosen, int32_t* slots, int32_t* offsets);

// `slopes` [experts + 1]: of probabilities, then of the squares of log sum exp; or null.
template <typename T>
void RouteExpertsBackward(const ExpertRouting& routing, const T* logits, const float* weights,
                          const int32_t* chosen, const float* dweights, const float* slopes,
                          T* dlogits);

// x [rows, width] -> y [rows * per_token, width].
template <typename T>
void DispatchRows(const RoutedRows& shape, const T* x, const int32_t* slots, T* y);

// y [rows * per_token, width] -> out [rows, width]. `weights`: null for ones, which is the backward
// of dispatching.
template <typename T>
void CombineRows(const RoutedRows& shape, const T* y, const float* weights, const int32_t* slots,
                 T* out);

// dy may be y.
template <typename T>
void CombineRowsBackward(const RoutedRows& shape, const T* y, const float* weights,
                         const int32_t* slots, const T* dout, T* dy, float* dweights);

// counts [experts + 1] = before + the rows of each expert, then all rows that were routed.
// `before`: null for zeros.
void CountRows(const ExpertRouting& routing, const int32_t* offsets, const float* before,
               float* counts);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_EXPERTS_EXPERTS_CPU_KERNEL_H_
