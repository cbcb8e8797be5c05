// What Muon's kernels agree on, on both devices: parameters, and where a matrix's scratch lies.
#ifndef MILEPOST_ENGINE_OPTIM_MUON_MUON_CONTRACT_H_
#define MILEPOST_ENGINE_OPTIM_MUON_MUON_CONTRACT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/dtype/dtype.h"
#include "engine/ops/contract/alignment.h"
#include "engine/ops/contract/sums.h"
#include "engine/ops/linear/linear_contract.h"

namespace milepost::kernels {

struct MuonParams {
  float momentum = 0.95f;
  bool nesterov = true;
  float gradient_scale = 1.0f;
};

struct MuonMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  // kF32 or kBf16: of the products' factors and, rounded once each, of what an iteration leaves.
  DType dtype = DType::kF32;
  int64_t elements() const { return rows * cols; }
};

// Where the scratch of a matrix lies on the CPU: A at 0 and b A + c A A; the next x, whose place
// the sums of the norm take first; in bf16 the square of A as it is summed. The scratch of the
// products follows.
struct OrthogonalizeScratch {
  explicit OrthogonalizeScratch(const MuonMatrix& matrix) {
    const int64_t side = std::min(matrix.rows, matrix.cols);
    const int64_t element = ByteSize(matrix.dtype);
    b = LineAligned(side * side * element);
    next = 2 * b;
    sums = next + LineAligned(std::max(matrix.elements() * element,
                                       SumSquaresWorkspaceBytes(matrix.elements())));
    bytes = sums + (element == 4 ? 0 : LineAligned(side * side * 4));
  }
  int64_t b, next, sums, bytes;
};

// The products of an iteration on a matrix, which is never transposed: A = x x^T where it is wide,
// x^T x where it is tall; A A; (b A + c A A) x.
struct MuonProducts {
  explicit MuonProducts(const MuonMatrix& matrix);
  int64_t side;  // the smaller one
  MatmulSpec gram, square, update;
};
std::vector<MatmulSpec> OrthogonalizeProducts(const MuonMatrix& matrix);

namespace cuda {

// The same on a GPU: A at 0, b A + c A A, the next x or the sums of the norm, in bf16 the square of
// A before it is rounded, and the norm's sum.
struct OrthogonalizeScratch {
  explicit OrthogonalizeScratch(const MuonMatrix& matrix) {
    const int64_t side = std::min(matrix.rows, matrix.cols);
    const int64_t element = ByteSize(matrix.dtype);
    b = DeviceAligned(side * side * element);
    next = 2 * b;
    squares = next + DeviceAligned(std::max(matrix.elements() * element,
                                            SumSquaresWorkspaceBytes(matrix.elements())));
    sum = squares + (element == 4 ? 0 : DeviceAligned(side * side * 4));
    bytes = sum + DeviceAligned(sizeof(double));
  }
  int64_t b, next, squares, sum, bytes;
};

}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPTIM_MUON_MUON_CONTRACT_H_
