#include "engine/kernels/cuda/flat.h"

#include "common/status_macros.h"
#include "engine/kernels/cuda/flat_kernels.h"
#include "engine/kernels/cuda/launch-inl.h"

namespace milepost::kernels::cuda {

template <typename T>
absl::Status SumSquares(const T* x, int64_t n, double* sum, void* workspace, cudaStream_t stream) {
  const SquaresKernel<T> squares = {x, n, static_cast<double*>(workspace)};
  MP_RETURN_IF_ERROR(Launch(squares, squares.grid(), stream, "SumSquares"));
  const SumKernel total = {squares.sums, squares.grid().x, sum};
  return Launch(total, total.grid(), stream, "SumSquares' total");
}
template absl::Status SumSquares(const float*, int64_t, double*, void*, cudaStream_t);
template absl::Status SumSquares(const bf16*, int64_t, double*, void*, cudaStream_t);

absl::Status SumScalars(const double* values, const int32_t* which, int64_t count, double* sum,
                        const double* stop_asked, double* stop, cudaStream_t stream) {
  const SumScalarsKernel kernel = {values, which, count, sum, stop_asked, stop};
  return Launch(kernel, kernel.grid(), stream, "SumScalars");
}

absl::Status DecideUpdate(const double* sum_squares, const ClipArgs* args, UpdateControl* control,
                          cudaStream_t stream) {
  const DecideKernel kernel = {sum_squares, args, control};
  return Launch(kernel, kernel.grid(), stream, "DecideUpdate");
}

}  // namespace milepost::kernels::cuda
