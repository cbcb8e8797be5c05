#include "engine/optim/muon/muon_contract.h"

#include <algorithm>

namespace milepost::kernels {

MuonProducts::MuonProducts(const MuonMatrix& matrix) : side(std::min(matrix.rows, matrix.cols)) {
  const int64_t other = std::max(matrix.rows, matrix.cols);
  const bool tall = matrix.rows > matrix.cols;
  gram = {.m = side, .n = side, .k = other, .transpose_a = tall, .transpose_b = !tall};
  square = {.m = side, .n = side, .k = side};
  // In fp32 it is added to a x, which bf16 has to keep apart until it is rounded.
  const bool accumulate = matrix.dtype == DType::kF32;
  update = {.m = matrix.rows, .n = matrix.cols, .k = side, .accumulate = accumulate};
  for (MatmulSpec* spec : {&gram, &square, &update}) spec->a = spec->b = matrix.dtype;
}

std::vector<MatmulSpec> OrthogonalizeProducts(const MuonMatrix& matrix) {
  const MuonProducts products(matrix);
  return {products.gram, products.square, products.update};
}

}  // namespace milepost::kernels
