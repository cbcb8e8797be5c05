// What the optimizers' kernels agree on, on both devices: parameters, the layout of 8-bit moments,
// and workspaces.
#ifndef MILEPOST_ENGINE_OPS_OPTIMIZER_OPTIMIZER_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_OPTIMIZER_OPTIMIZER_CONTRACT_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/round_up.h"
#include "engine/dtype/dtype.h"
#include "engine/ops/contract/alignment.h"
#include "engine/ops/contract/sums.h"

namespace milepost::kernels {

struct AdamWParams {
  float learning_rate = 0.0f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;    // decoupled; 0 for tensors without decay: call once per segment
  float gradient_scale = 1.0f;  // multiplies g: the clip factor, and 1 / loss scale
  int64_t step = 1;             // 1 for the first update: bias correction
};

struct SgdParams {
  float learning_rate = 0.0f;
  float momentum = 0.9f;
  float weight_decay = 0.0f;  // added to the gradient, as torch.optim.SGD does
  float gradient_scale = 1.0f;
};

struct LionParams {
  float learning_rate = 0.0f;
  float beta1 = 0.9f;
  float beta2 = 0.99f;
  float weight_decay = 0.0f;  // decoupled
  float gradient_scale = 1.0f;
};

// ---- AdamW with moments of 8 bits (ops/optimizer/adamw_8bit_cpu_kernel.h) ----
inline constexpr int64_t kQuantizedBlock = 256;  // elements

// The 256 numbers that codes stand for, ascending. Signed: for e = 0 to 6 the middles of 2^e equal
// parts of [0.1, 1], times 10^(e - 6), either sign; 0 and 1. Unsigned: 2^(e + 1) parts.
const std::array<float, 256>& SignedCodes();
const std::array<float, 256>& UnsignedCodes();

// Where codes change, as arithmetic needs it. The code of x, a magnitude in [0, 1], counted from 0
// for 0: that of 1 above `one`, 0 up to lower[0], else with the last decade e whose `lower` is
// below x: parts[e] - parts[0] + 1 + i, where i = ceil(x factor[e] - parts[e] / 9) - 1 is cut to
// [0, parts[e] - 1].
struct CodeBorders {
  bool with_sign;
  float factor[7];    // 10^(6 - e) parts / 0.9
  float parts[7];     // of decade e
  float lower[7];     // magnitudes above this are in decade e, or a higher one
  float first_parts;  // parts[0]
  float one;          // magnitudes above this take the code of 1
  float most;         // its index
};
const CodeBorders& SignedBorders();
const CodeBorders& UnsignedBorders();

// Element 0 is the first of a block.
struct QuantizedMoments {
  uint8_t* m;
  float* m_scale;  // one per block
  uint8_t* v;
  float* v_scale;
};

// ---- LAMB: a pair of f64 sums per block ----
inline int64_t LambWorkspaceBytes(int64_t n) { return 2 * SumSquaresWorkspaceBytes(n); }

// ---- Muon ----
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

namespace cuda {

// Elements that a block of threads updates: a chunk, which lies within one tensor.
inline constexpr int64_t kChunkElements = 4096;
inline int64_t LambWorkspaceBytes(int64_t chunk_count) {
  return chunk_count * 2 * static_cast<int64_t>(sizeof(double));
}

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

#endif  // MILEPOST_ENGINE_OPS_OPTIMIZER_OPTIMIZER_CONTRACT_H_
