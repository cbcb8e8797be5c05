// The mapping against a plain row-major product: the column-major side is computed as BLAS
// documents it, from the layout alone.
#include "engine/kernels/cuda/libraries/product_layout.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::kernels::cuda {
namespace {

using ::testing::HasSubstr;
using Matrix = std::vector<double>;

Matrix Numbers(int64_t count, int seed) {
  Matrix numbers(count);
  uint64_t state = static_cast<uint64_t>(seed);
  for (double& x : numbers) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x = static_cast<double>(static_cast<int>(state >> 40) % 17 - 8);
  }
  return numbers;
}

double TanhGelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double TanhGeluSlope(double x) {
  const double h = 1e-5;
  return (TanhGelu(x + h) - TanhGelu(x - h)) / (2 * h);
}

struct Operands {
  Matrix a, b, bias, c, aux;
};

double Finish(const Product& p, double sum, double bias, double old, double* aux) {
  if (p.epilogue == Epilogue::kGeluBackward) return sum * TanhGeluSlope(*aux);
  sum += bias;
  if (p.epilogue == Epilogue::kNone) return sum + (p.spec.accumulate ? old : 0);
  if (p.epilogue == Epilogue::kGelu) *aux = sum;
  return TanhGelu(sum);
}

void RowMajor(const Product& p, Operands* o) {
  const MatmulSpec& s = p.spec;
  const int64_t ar = s.a_row > 0 ? s.a_row : s.transpose_a ? s.m : s.k;
  const int64_t br = s.transpose_b ? s.k : s.n, cr = s.c_row > 0 ? s.c_row : s.n;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < s.k; ++l) {
        sum += o->a[s.transpose_a ? l * ar + i : i * ar + l] *
               o->b[s.transpose_b ? j * br + l : l * br + j];
      }
      double& c = o->c[i * cr + j];
      c = Finish(p, sum, s.bias ? o->bias[j] : 0, c, &o->aux[i * s.n + j]);
    }
  }
}

// D = alpha op(first) op(second) + beta C, column-major, bias by row: cuBLASLt's words.
void Blas(const Product& p, const ColumnMajorProduct& x, Operands* o) {
  const auto at = [](const Matrix& matrix, const ColumnMajor& layout, bool transpose, int64_t row,
                     int64_t column) {
    if (transpose) std::swap(row, column);
    EXPECT_LT(row, layout.rows);
    EXPECT_LT(column, layout.columns);
    EXPECT_LE(layout.rows, layout.stride);
    return matrix[column * layout.stride + row];
  };
  ASSERT_EQ(x.result.rows, x.m);
  ASSERT_EQ(x.result.columns, x.n);
  Matrix unused(1);
  for (int64_t j = 0; j < x.n; ++j) {
    for (int64_t i = 0; i < x.m; ++i) {
      double sum = 0;
      for (int64_t l = 0; l < x.k; ++l) {
        sum += at(o->b, x.first, x.transpose_first, i, l) *
               at(o->a, x.second, x.transpose_second, l, j);
      }
      double& c = o->c[j * x.result.stride + i];
      double* aux = x.aux_stride > 0 ? &o->aux[j * x.aux_stride + i] : unused.data();
      c = Finish(p, sum, p.spec.bias ? o->bias[i] : 0, x.beta * c, aux);
    }
  }
}

void ExpectSame(const Product& product) {
  SCOPED_TRACE(ProductKey(product));
  const auto layout = LayoutOf(product);
  ASSERT_TRUE(layout.ok()) << layout.status();
  const MatmulSpec& s = product.spec;
  const int64_t widest = std::max({s.m, s.n, s.k, s.a_row, s.c_row});
  Operands ours{.a = Numbers(widest * widest, 1),
                .b = Numbers(widest * widest, 2),
                .bias = Numbers(s.n, 3),
                .c = Numbers(widest * widest, 4),
                .aux = Numbers(s.m * s.n, 5)};
  Operands theirs = ours;
  RowMajor(product, &ours);
  Blas(product, *layout, &theirs);
  EXPECT_EQ(ours.c, theirs.c);
  EXPECT_EQ(ours.aux, theirs.aux);
}

// The products of kLinear* and kLmHead*: rows N, width K, outputs M (or V).
TEST(ProductLayoutTest, EveryProductOfTheOpsIsTheSameInColumnMajorWords) {
  constexpr int64_t N = 5, K = 7, M = 8, kWide = 11;
  constexpr DType h = DType::kBf16;
  const MatmulSpec specs[] = {
      {.m = N, .n = M, .k = K, .a = h, .b = h, .c = h, .bias = true, .bias_type = h},
      {.m = N,
       .n = M,
       .k = K,
       .transpose_b = true,
       .a = h,
       .b = h,
       .c = h,
       .bias = true,
       .bias_type = h},
      {.m = N, .n = M, .k = K, .transpose_b = true, .a = h, .b = h, .c = h, .c_row = kWide},
      {.m = N, .n = K, .k = M, .transpose_b = true, .a = h, .b = h, .c = h},
      {.m = N, .n = K, .k = M, .a = h, .b = h, .c = h, .accumulate = true, .a_row = kWide},
      {.m = K, .n = M, .k = N, .transpose_a = true, .a = h, .b = h},
      {.m = K, .n = M, .k = N, .transpose_a = true, .a = h, .b = h, .accumulate = true},
      {.m = M,
       .n = K,
       .k = N,
       .transpose_a = true,
       .a = h,
       .b = h,
       .accumulate = true,
       .a_row = kWide},
      {.m = M, .n = K, .k = N, .transpose_a = true, .transpose_b = true},
  };
  for (const MatmulSpec& spec : specs) ExpectSame({.spec = spec});
}

TEST(ProductLayoutTest, GeluAndItsGradientAreTheOpsFused) {
  constexpr DType h = DType::kF16;
  MatmulSpec spec{.m = 3, .n = 16, .k = 5, .a = h, .b = h, .c = h, .bias = true, .bias_type = h};
  ExpectSame({.spec = spec, .epilogue = Epilogue::kGelu});
  spec.transpose_b = true;
  ExpectSame({.spec = spec, .epilogue = Epilogue::kGelu});
  ExpectSame({.spec = spec, .epilogue = Epilogue::kGeluAlone});
  EXPECT_EQ(LayoutOf({.spec = spec, .epilogue = Epilogue::kGeluAlone})->aux_stride, 0);
  spec.bias = false;
  ExpectSame({.spec = spec, .epilogue = Epilogue::kGeluBackward});
}

TEST(ProductLayoutTest, EightBitOperandsHaveTheSummedIndexInnermost) {
  const MatmulSpec good{.m = 16,
                        .n = 32,
                        .k = 48,
                        .transpose_b = true,
                        .a = DType::kE5M2,
                        .b = DType::kE4M3,
                        .c = DType::kBf16,
                        .bias = true,
                        .bias_type = DType::kBf16,
                        .c_row = 64};
  ExpectSame({.spec = good});
  EXPECT_EQ(ProductKey({.spec = good}),
            "m=16 n=32 k=48 ta=0 tb=1 in=e5m2xe4m3 out=bf16 bias=bf16 add=0 ar=48 cr=64 ep=0");
  // "TN" and nothing else, on Hopper.
  EXPECT_TRUE(LayoutOf({.spec = good})->transpose_first);
  EXPECT_FALSE(LayoutOf({.spec = good})->transpose_second);
  const auto refusal = [](const Product& product) {
    return std::string(LayoutOf(product).status().message());
  };
  Product bad = {.spec = good};
  bad.spec.b = DType::kE5M2;
  EXPECT_THAT(refusal(bad), HasSubstr("8-bit operands are e4m3"));
  bad.spec.b = DType::kBf16;
  EXPECT_THAT(refusal(bad), HasSubstr("8-bit operands are e4m3"));
  bad = {.spec = good};
  bad.spec.transpose_b = false;
  EXPECT_THAT(refusal(bad), HasSubstr("innermost"));
  bad = {.spec = good};
  bad.spec.k = 40;
  EXPECT_THAT(refusal(bad), HasSubstr("multiples of 16"));
  bad = {.spec = good};
  bad.spec.c = bad.spec.bias_type = DType::kF16;
  EXPECT_THAT(refusal(bad), HasSubstr("fp32 or bf16"));
  bad = {.spec = good, .epilogue = Epilogue::kGelu};
  EXPECT_THAT(refusal(bad), HasSubstr("no epilogue"));
}

TEST(ProductLayoutTest, RefusesWhatCublasltCannotDo) {
  constexpr DType h = DType::kBf16;
  const MatmulSpec good{.m = 4, .n = 8, .k = 8, .a = h, .b = h, .c = h};
  const auto refusal = [](MatmulSpec spec, Epilogue epilogue) {
    return std::string(LayoutOf({spec, epilogue}).status().message());
  };
  EXPECT_EQ(refusal(good, Epilogue::kGelu), "");
  MatmulSpec bad = good;
  bad.n = 12;
  EXPECT_THAT(refusal(bad, Epilogue::kGelu), HasSubstr("multiple of 8"));
  bad = good;
  bad.accumulate = true;
  EXPECT_THAT(refusal(bad, Epilogue::kGelu), HasSubstr("accumulates"));
  bad = good;
  bad.c = DType::kF32;
  EXPECT_THAT(refusal(bad, Epilogue::kGelu), HasSubstr("16-bit"));
  bad = good;
  bad.bias = true;
  EXPECT_THAT(refusal(bad, Epilogue::kNone), HasSubstr("bias must be"));
  bad.bias_type = h;
  EXPECT_THAT(refusal(bad, Epilogue::kGeluBackward), HasSubstr("no bias"));
  bad = good;
  bad.a_row = 7;
  EXPECT_THAT(refusal(bad, Epilogue::kNone), HasSubstr("A's rows overlap"));
  bad = good;
  bad.c_row = 7;
  EXPECT_THAT(refusal(bad, Epilogue::kNone), HasSubstr("C's rows overlap"));
  bad = good;
  bad.a = DType::kF32;
  EXPECT_THAT(refusal(bad, Epilogue::kNone), HasSubstr("one type"));
  bad = good;
  bad.c = DType::kF16;
  EXPECT_THAT(refusal(bad, Epilogue::kNone), HasSubstr("operands' type"));
  bad = good;
  bad.k = 0;
  EXPECT_THAT(refusal(bad, Epilogue::kNone), HasSubstr("m=4 n=8 k=0"));
}

TEST(ProductLayoutTest, KeysTellProductsApart) {
  const Product product{.spec = {.m = 4, .n = 8, .k = 16}};
  EXPECT_EQ(ProductKey(product),
            "m=4 n=8 k=16 ta=0 tb=0 in=f32 out=f32 bias=no add=0 ar=16 cr=8 ep=0");
  Product other = product;
  other.spec.c_row = 8;  // what 0 stands for
  EXPECT_EQ(ProductKey(other), ProductKey(product));
  other.spec.c_row = 16;
  EXPECT_NE(ProductKey(other), ProductKey(product));
  EXPECT_TRUE(Aligned(product, *LayoutOf(product)));
  other.spec.c_row = 9;
  EXPECT_FALSE(Aligned(other, *LayoutOf(other)));
}

}  // namespace
}  // namespace milepost::kernels::cuda
