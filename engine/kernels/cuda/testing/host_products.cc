#include "engine/kernels/cuda/testing/host_products.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/dtype/half.h"
#include "engine/ops/fp8/fp8_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

float At(const void* p, DType type, int64_t i) {
  switch (type) {
    case DType::kBf16:
      return ToFloat(static_cast<const bf16*>(p)[i]);
    case DType::kF16:
      return ToFloat(static_cast<const f16*>(p)[i]);
    case DType::kE4M3:
      return ToFloat(static_cast<const e4m3*>(p)[i]);
    case DType::kE5M2:
      return ToFloat(static_cast<const e5m2*>(p)[i]);
    default:
      return static_cast<const float*>(p)[i];
  }
}

void Put(void* p, DType type, int64_t i, float value) {
  switch (type) {
    case DType::kBf16:
      static_cast<bf16*>(p)[i] = ToBf16(value);
      break;
    case DType::kF16:
      static_cast<f16*>(p)[i] = ToF16(value);
      break;
    default:
      static_cast<float*>(p)[i] = value;
  }
}

// rows x columns floats of a matrix stored with `stride` elements from row to row, or of its
// transpose.
void Unpack(const void* p, DType type, int64_t rows, int64_t columns, int64_t stride,
            bool transposed, std::vector<float>& out) {
  out.resize(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[r * columns + c] = At(p, type, transposed ? c * stride + r : r * stride + c);
    }
  }
}

// The tanh form and its derivative.
constexpr double kRootTwoOverPi = 0.7978845608028654;
constexpr double kCubic = 0.044715;
double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x)));
}
double GeluSlope(double x) {
  const double t = std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRootTwoOverPi * (1 + 3 * kCubic * x * x);
}

absl::Status Wrong(const Product& product, const char* what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the matrix product ", ProductKey(product), ": ", what));
}

bool Aligned(const void* p, int64_t alignment) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(alignment) == 0;
}

absl::Status CheckArguments(const Product& product, const ProductArguments& x,
                            const void* workspace, int64_t workspace_bytes) {
  if (x.a == nullptr || x.b == nullptr || x.c == nullptr) return Wrong(product, "no operand");
  if (product.spec.bias && x.bias == nullptr) return Wrong(product, "no bias");
  if (HasAux(product.epilogue) && x.aux == nullptr) return Wrong(product, "no aux");
  if (IsFp8(product.spec.a) && (x.a_scale == nullptr || x.b_scale == nullptr)) {
    return Wrong(product, "no scale of an 8-bit operand");
  }
  for (const void* p : {x.a, x.b, x.bias, static_cast<const void*>(x.c),
                        static_cast<const void*>(x.aux), x.addend}) {
    if (!Aligned(p, product.alignment)) return Wrong(product, "an operand is misaligned");
  }
  if (workspace_bytes > 0 && (workspace == nullptr || !Aligned(workspace, 256))) {
    return Wrong(product, "the workspace is missing or misaligned");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status HostProducts::Prepare(const Product& product) {
  MP_RETURN_IF_ERROR(LayoutOf(product).status());
  if (std::find(prepared_.begin(), prepared_.end(), product) == prepared_.end()) {
    prepared_.push_back(product);
  }
  choices_.Put(ProductKey(product), {.words = {static_cast<uint64_t>(order_)}});
  return absl::OkStatus();
}

absl::Status HostProducts::Execute(const Product& product, const ProductArguments& x,
                                   void* workspace, CUstream_st*) {
  if (std::find(prepared_.begin(), prepared_.end(), product) == prepared_.end()) {
    return Wrong(product, "was not prepared");
  }
  MP_RETURN_IF_ERROR(CheckArguments(product, x, workspace, workspace_bytes_));
  const Algorithm* chosen = choices_.Find(ProductKey(product));
  const bool backward =
      chosen != nullptr && chosen->words[0] == static_cast<uint64_t>(Order::kBackward);
  const MatmulSpec& s = product.spec;
  const int64_t a_row = s.a_row > 0 ? s.a_row : s.transpose_a ? s.m : s.k;
  const int64_t b_row = s.b_row > 0 ? s.b_row : s.transpose_b ? s.k : s.n;
  const int64_t c_row = s.c_row > 0 ? s.c_row : s.n;
  Unpack(x.a, s.a, s.m, s.k, a_row, s.transpose_a, a_);
  Unpack(x.b, s.b, s.n, s.k, b_row, !s.transpose_b, b_);
  const float scale = IsFp8(s.a) ? *x.a_scale * *x.b_scale : 1;
  const void* addend = x.addend != nullptr ? x.addend : x.c;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      const float* a = a_.data() + i * s.k;
      const float* b = b_.data() + j * s.k;
      float sum = 0;
      for (int64_t k = 0; k < s.k; ++k) {
        const int64_t at = backward ? s.k - 1 - k : k;
        sum += a[at] * b[at];
      }
      sum *= scale;
      if (s.bias) sum += At(x.bias, s.bias_type, j);
      if (s.accumulate) sum += At(addend, s.c, i * c_row + j);
      if (product.epilogue == Epilogue::kGelu) {
        Put(x.aux, s.c, i * s.n + j, sum);
        sum = static_cast<float>(Gelu(sum));
      } else if (product.epilogue == Epilogue::kGeluAlone) {
        sum = static_cast<float>(Gelu(sum));
      } else if (product.epilogue == Epilogue::kGeluBackward) {
        sum *= static_cast<float>(GeluSlope(At(x.aux, s.c, i * s.n + j)));
      }
      Put(x.c, s.c, i * c_row + j, sum);
    }
  }
  return absl::OkStatus();
}

}  // namespace milepost::kernels::cuda
