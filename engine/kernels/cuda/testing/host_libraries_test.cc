// The doubles of the libraries against fp64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/host_graphs.h"
#include "engine/kernels/cuda/testing/host_products.h"
#include "engine/ops/fp8/fp8_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

using ::testing::HasSubstr;

template <typename T>
struct Operands {
  explicit Operands(const MatmulSpec& s)
      : a_row(s.a_row > 0     ? s.a_row
              : s.transpose_a ? s.m
                              : s.k),
        c_row(s.c_row > 0 ? s.c_row : s.n),
        a(RandomVector<T>((s.transpose_a ? s.k : s.m) * a_row, 1)),
        b(RandomVector<T>(s.k * s.n, 2)),
        bias(RandomVector<T>(s.n, 3)),
        addend(RandomVector<T>(s.m * c_row, 4)) {}
  double At(const MatmulSpec& s, int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t k = 0; k < s.k; ++k) {
      sum += double{ToFloat(a[s.transpose_a ? k * a_row + i : i * a_row + k])} *
             ToFloat(b[s.transpose_b ? j * s.k + k : k * s.n + j]);
    }
    if (s.bias) sum += ToFloat(bias[j]);
    if (s.accumulate) sum += ToFloat(addend[i * c_row + j]);
    return sum;
  }
  int64_t a_row, c_row;
  std::vector<T> a, b, bias, addend;
};

template <typename T>
void TestProduct(MatmulSpec s) {
  s.a = s.b = s.c = s.bias_type = kDTypeOf<T>;
  Operands<T> x(s);
  const auto before = RandomVector<T>(s.m * x.c_row, 5);
  std::vector<T> c = before;
  HostProducts products(0);
  const Product product{.spec = s, .alignment = static_cast<int>(sizeof(T))};
  ASSERT_EQ(products.Prepare(product), absl::OkStatus());
  ASSERT_EQ(products.Execute(product,
                             {.a = x.a.data(),
                              .b = x.b.data(),
                              .bias = x.bias.data(),
                              .c = c.data(),
                              .addend = x.addend.data()},
                             nullptr, nullptr),
            absl::OkStatus());
  const double bar = sizeof(T) == 4 ? 1e-5 : 4e-3;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < x.c_row; ++j) {
      const float got = ToFloat(c[i * x.c_row + j]);
      if (j >= s.n) {
        EXPECT_EQ(got, ToFloat(before[i * x.c_row + j])) << "beside the result";
      } else {
        EXPECT_NEAR(got, x.At(s, i, j), bar * std::abs(x.At(s, i, j)) + 1e-5) << i << " " << j;
      }
    }
  }
}

TEST(HostProducts, AreThePlainOnes) {
  TestProduct<float>({.m = 5, .n = 7, .k = 3});
  TestProduct<float>({.m = 5, .n = 7, .k = 3, .transpose_a = true, .a_row = 9});
  TestProduct<bf16>({.m = 4, .n = 6, .k = 8, .transpose_b = true, .bias = true, .c_row = 10});
  TestProduct<float>({.m = 2, .n = 3, .k = 4, .accumulate = true, .a_row = 5, .c_row = 4});
}

TEST(HostProducts, FuseGelu) {
  const MatmulSpec s{.m = 3, .n = 8, .k = 5, .a = DType::kF16, .b = DType::kF16, .c = DType::kF16};
  const Operands<f16> x(s);
  std::vector<f16> plain(24), aux(24), y(24), alone(24), dx(24);
  const auto run = [&](Epilogue epilogue, std::vector<f16>& c) {
    HostProducts products(0);
    const Product product{.spec = s, .epilogue = epilogue, .alignment = 2};
    ASSERT_EQ(products.Prepare(product), absl::OkStatus());
    const ProductArguments arguments{.a = x.a.data(),
                                     .b = x.b.data(),
                                     .c = c.data(),
                                     .aux = HasAux(epilogue) ? aux.data() : nullptr};
    ASSERT_EQ(products.Execute(product, arguments, nullptr, nullptr), absl::OkStatus());
  };
  run(Epilogue::kNone, plain);
  run(Epilogue::kGelu, y);
  run(Epilogue::kGeluAlone, alone);
  run(Epilogue::kGeluBackward, dx);
  std::vector<f16> want(24), want_dx(24);
  kernels::GeluForward<f16>(plain.data(), 24, want.data());
  kernels::GeluBackward<f16>(plain.data(), plain.data(), 24, want_dx.data());
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(aux[i].bits, plain[i].bits);
    EXPECT_EQ(alone[i].bits, y[i].bits);
    EXPECT_NEAR(ToFloat(y[i]), ToFloat(want[i]), 2e-3 * std::abs(ToFloat(want[i])) + 1e-4);
    EXPECT_NEAR(ToFloat(dx[i]), ToFloat(want_dx[i]), 2e-3 * std::abs(ToFloat(want_dx[i])) + 1e-4);
  }
}

// Against fp64 of the numbers that the codes stand for.
TEST(HostProducts, MultiplyEightBits) {
  const MatmulSpec s{.m = 16,
                     .n = 32,
                     .k = 48,
                     .transpose_b = true,
                     .a = DType::kE5M2,
                     .b = DType::kE4M3,
                     .accumulate = true};
  std::vector<e5m2> a;
  std::vector<e4m3> b;
  for (const float x : RandomVector<float>(s.m * s.k, 1)) a.push_back(ToE5M2(x * 64));
  for (const float x : RandomVector<float>(s.n * s.k, 2)) b.push_back(ToE4M3(x * 16));
  const std::vector<float> addend = RandomVector<float>(s.m * s.n, 3);
  std::vector<float> c(addend.size());
  const float a_scale = 1.0F / 64, b_scale = 1.0F / 16;
  HostProducts products(0);
  const Product product{.spec = s};
  ASSERT_EQ(products.Prepare(product), absl::OkStatus());
  ProductArguments arguments{.a = a.data(), .b = b.data(), .c = c.data(), .addend = addend.data()};
  EXPECT_THAT(std::string(products.Execute(product, arguments, nullptr, nullptr).message()),
              HasSubstr("no scale"));
  arguments.a_scale = &a_scale;
  arguments.b_scale = &b_scale;
  ASSERT_EQ(products.Execute(product, arguments, nullptr, nullptr), absl::OkStatus());
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double want = 0;
      for (int64_t k = 0; k < s.k; ++k) {
        want += double{ToFloat(a[i * s.k + k])} * ToFloat(b[j * s.k + k]);
      }
      want = want * a_scale * b_scale + addend[i * s.n + j];
      EXPECT_NEAR(c[i * s.n + j], want, 1e-5 * (1 + std::abs(want)));
    }
  }
}

TEST(HostProducts, SayWhatCublasWouldNotDo) {
  HostProducts products(256);
  alignas(256) char workspace[256];
  alignas(16) float x[64] = {};
  const Product product{.spec = {.m = 2, .n = 2, .k = 2}};
  const auto message = [&](const float* a, void* scratch) {
    return std::string(
        products.Execute(product, {.a = a, .b = x, .c = x + 8}, scratch, nullptr).message());
  };
  EXPECT_THAT(message(x, workspace), HasSubstr("not prepared"));
  ASSERT_EQ(products.Prepare(product), absl::OkStatus());
  EXPECT_EQ(message(x, workspace), "");
  EXPECT_THAT(message(x + 1, workspace), HasSubstr("misaligned"));
  EXPECT_THAT(message(x, workspace + 64), HasSubstr("workspace"));
  Product fused = product;
  fused.epilogue = Epilogue::kGelu;
  EXPECT_THAT(std::string(products.Prepare(fused).message()), HasSubstr("16-bit"));
}

TEST(HostGraphs, ConvolveInSixteenBits) {
  const ConvolutionSpec spec{.batch = 1,
                             .height = 4,
                             .width = 3,
                             .in = 2,
                             .out = 3,
                             .kernel = 3,
                             .padding = 1,
                             .type = DType::kF16};
  const auto x = RandomVector<f16>(4 * 3 * 2, 1), w = RandomVector<f16>(spec.WeightElements(), 2);
  std::vector<f16> y(4 * 3 * 3);
  HostGraphs graphs({.workspace_bytes = 0});
  ASSERT_EQ(graphs.Convolution(spec, ConvolutionPass::kForward, {x.data(), w.data(), y.data()},
                               nullptr, nullptr),
            absl::OkStatus());
  for (int64_t at = 0; at < 12; ++at) {
    for (int64_t o = 0; o < 3; ++o) {
      double sum = 0;
      for (int64_t k = 0; k < 9; ++k) {
        const int64_t row = at / 3 + k / 3 - 1, column = at % 3 + k % 3 - 1;
        if (row < 0 || row >= 4 || column < 0 || column >= 3) continue;
        for (int64_t i = 0; i < 2; ++i) {
          sum += double{ToFloat(x[(row * 3 + column) * 2 + i])} * ToFloat(w[(o * 2 + i) * 9 + k]);
        }
      }
      EXPECT_NEAR(ToFloat(y[at * 3 + o]), sum, 1e-3 * std::abs(sum) + 1e-3);
    }
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
