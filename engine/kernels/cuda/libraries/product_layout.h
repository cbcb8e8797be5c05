// Row-major matrix products said in cuBLASLt's column-major words. Pure: no CUDA needed.
//
//   Product product{.spec = {.m = rows, .n = out, .k = in, .bias = true},   //
// ops/linear/linear_contract.h
//                   .epilogue = Epilogue::kGelu};
//   MP_ASSIGN_OR_RETURN(ColumnMajorProduct layout, LayoutOf(product));
//
// A row-major matrix [r,c] is, byte for byte, a column-major one [c,r]. So C = op(A) op(B) becomes
// C' = op(B)' op(A)': cuBLASLt's first operand is our B and its second our A, and what it calls a
// transposition is ours, since both matrices are read transposed. A bias over our columns is one
// over its rows, which is what its epilogue adds.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_PRODUCT_LAYOUT_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_PRODUCT_LAYOUT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/ops/linear/linear_contract.h"

namespace milepost::kernels::cuda {

// What happens to the product before it is written. All in fp32, rounded once.
enum class Epilogue : uint8_t {
  kNone,          // C = product (+ bias)
  kGelu,          // aux = product (+ bias); C = gelu(aux), the tanh form: kLinear, then kGelu
  kGeluBackward,  // C = product * gelu'(aux): kLinearBackwardInput, then kGeluBackward. No bias
  kGeluAlone,     // C = gelu(product (+ bias)): kGelu where nobody wants aux
};

constexpr bool HasAux(Epilogue epilogue) {
  return epilogue == Epilogue::kGelu || epilogue == Epilogue::kGeluBackward;
}

// aux: [m,n] of C's type, rows adjacent. Operands of 8 bits: one e4m3, the other too or e5m2; both
// with k innermost, sizes multiples of 16, the result fp32 or bf16, scaled (ProductArguments).
struct Product {
  MatmulSpec spec;  // packed_b is the CPU's alone and must not be set
  Epilogue epilogue = Epilogue::kNone;
  int alignment = 16;  // bytes, of all operands: less where columns of a matrix begin anywhere
  bool operator==(const Product&) const = default;
};

// A column-major operand as it is stored.
struct ColumnMajor {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // elements from one column to the next
};
struct ColumnMajorProduct {
  int64_t m = 0;  // of the result as cuBLASLt sees it: our n
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_first = false;
  bool transpose_second = false;
  ColumnMajor first;       // our B
  ColumnMajor second;      // our A
  ColumnMajor result;      // our C
  int64_t aux_stride = 0;  // 0: no aux
  float beta = 0;          // 1: added to what the result holds
};

// INVALID_ARGUMENT for sizes or strides that fit no matrix and for epilogues that cuBLASLt has not:
// GELUs of fp32 or of accumulating products, and those of rows that are no multiple of 8 wide; for
// 8-bit products that Hopper has not.
absl::StatusOr<ColumnMajorProduct> LayoutOf(const Product& product);

// Whether cuBLASLt's faster kernels apply: every stride is a multiple of 16 bytes.
bool Aligned(const Product& product, const ColumnMajorProduct& layout);

// "m=1024 n=3072 k=768 ta=0 tb=0 in=bf16 out=bf16 bias=bf16 add=0 ar=768 cr=3072 ep=1": what
// tells one product from another, in words that never change.
std::string ProductKey(const Product& product);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_PRODUCT_LAYOUT_H_
