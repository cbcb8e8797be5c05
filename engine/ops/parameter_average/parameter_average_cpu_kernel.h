// Averages of parameters over steps. n is a number of elements. The same bits at any thread count,
// on any CPU and on a GPU.
#ifndef MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_CPU_KERNEL_H_

#include <cstdint>

#include "engine/dtype/half.h"

namespace milepost::kernels {

// averages += weight * (parameters - averages). T: float or bf16.
template <typename T>
void AddToAverages(const T* parameters, int64_t n, float weight, float* averages);

// Each becomes what the other was.
void SwapAverages(int64_t n, float* parameters, float* averages);

// The parameters become the averages, rounded to the nearest (of two that are equally near, the one
// nearer to 0). The averages' bytes hold what is left of them and what the parameters were: see
// ReturnParameters, which makes both what they were.
void TakeAverages(int64_t n, bf16* parameters, float* averages);
void ReturnParameters(int64_t n, bf16* parameters, float* averages);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_PARAMETER_AVERAGE_PARAMETER_AVERAGE_CPU_KERNEL_H_
