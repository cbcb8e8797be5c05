#include "engine/optim/muon/muon_cpu_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

using Matrix = std::vector<double>;  // row-major

// a[m,k] b[k,n], or with b transposed.
Matrix Product(const Matrix& a, const Matrix& b, int64_t m, int64_t k, int64_t n, bool transposed) {
  Matrix c(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l)
        c[i * n + j] += a[i * k + l] * b[transposed ? j * k + l : l * n + j];
    }
  }
  return c;
}

// What an iteration leaves, as the type has it.
void Round(DType dtype, Matrix& values) {
  if (dtype == DType::kF32) return;
  for (double& value : values) value = ToFloat(ToBf16(static_cast<float>(value)));
}

// The published iteration, in fp64 but for what is rounded, on x or its transpose, whichever is
// wide.
Matrix Wanted(const std::vector<float>& x, const MuonMatrix& shape, int steps) {
  const bool tall = shape.rows > shape.cols;
  const int64_t m = std::min(shape.rows, shape.cols), n = std::max(shape.rows, shape.cols);
  Matrix y(x.size());
  Matrix given(x.begin(), x.end());
  Round(shape.dtype, given);
  Matrix norm(1);
  for (double value : given) norm[0] += value * value;
  norm[0] = std::sqrt(norm[0]);
  Round(shape.dtype, norm);
  norm[0] = std::max(norm[0], 1e-7);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) y[i * n + j] = given[tall ? j * m + i : i * n + j] / norm[0];
  }
  Round(shape.dtype, y);
  for (int step = 0; step < steps; ++step) {
    Matrix a = Product(y, y, m, n, m, true);
    Round(shape.dtype, a);
    Matrix b = Product(a, a, m, m, m, false);
    for (size_t i = 0; i < b.size(); ++i) b[i] = -4.7750 * a[i] + 2.0315 * b[i];
    Round(shape.dtype, b);
    Matrix next = Product(b, y, m, m, n, false);
    for (size_t i = 0; i < y.size(); ++i) y[i] = 3.4445 * y[i] + next[i];
    Round(shape.dtype, y);
  }
  if (!tall) return y;
  Matrix back(y.size());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) back[j * m + i] = y[i * n + j];
  }
  return back;
}

std::vector<float> Orthogonalized(std::vector<float> x, const MuonMatrix& shape, int steps) {
  MatmulCache cache;
  size_t scratch = 0;
  for (const MatmulSpec& spec : OrthogonalizeProducts(shape)) {
    scratch = std::max(scratch, *cache.WorkspaceBytes(spec));
  }
  AlignedBuffer workspace(static_cast<size_t>(OrthogonalizeScratch(shape).bytes) + scratch);
  EXPECT_EQ(Orthogonalize(shape, steps, cache, x.data(), static_cast<char*>(workspace.data())),
            absl::OkStatus());
  return x;
}

TEST(Muon, OrthogonalizesWideTallAndSquare) {
  for (const MuonMatrix& shape :
       {MuonMatrix{24, 24}, {16, 96}, {96, 16}, {33, 7}, {1, 40}, {40, 1}}) {
    const auto x = RandomVector<float>(shape.elements(), 5);
    for (int steps : {1, 4, 5}) {
      ExpectClose(Orthogonalized(x, shape, steps), Wanted(x, shape, steps), 2e-5, "orthogonalized");
    }
  }
}

double Distance(const std::vector<float>& a, const Matrix& b) {
  double sum = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(sum / norm);
}

// A sum in fp32 that is rounded the other way than one in fp64 is rare, and moves what comes after
// it a little. All sums that are kept, or factors that are not rounded, are much farther off.
TEST(Muon, Bf16RoundsFactorsAndNothingElse) {
  for (const MuonMatrix& shape : {MuonMatrix{24, 24, DType::kBf16},
                                  {16, 96, DType::kBf16},
                                  {96, 16, DType::kBf16},
                                  {33, 7, DType::kBf16}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const auto x = RandomVector<float>(shape.elements(), 5);
    const auto got = Orthogonalized(x, shape, 1);
    EXPECT_LT(Distance(got, Wanted(x, shape, 1)), 2e-4);
    EXPECT_GT(Distance(got, Wanted(x, {shape.rows, shape.cols}, 1)), 1e-3);
    EXPECT_LT(Distance(Orthogonalized(x, shape, 5), Wanted(x, shape, 5)), 6e-3);
    for (float value : got) ASSERT_EQ(ToFloat(ToBf16(value)), value);
  }
}

// Its singular values are near 1 when x's are within a factor of about a thousand.
TEST(Muon, SingularValuesComeNearOne) {
  const MuonMatrix shape{12, 48};
  const auto x = RandomVector<float>(shape.elements(), 9);
  const auto y = ToDouble(Orthogonalized(x, shape, 5));
  const Matrix gram = Product(y, y, 12, 48, 12, true);
  double trace = 0;
  for (int64_t i = 0; i < 12; ++i) trace += gram[i * 13];
  EXPECT_NEAR(trace / 12, 1, 0.4);
}

TEST(Muon, ZeroStaysZero) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const MuonMatrix shape{8, 8, dtype};
    for (float value : Orthogonalized(std::vector<float>(64), shape, 5)) EXPECT_EQ(value, 0);
  }
}

class MuonPasses : public OnEveryTarget {};
MP_ON_EVERY_TARGET(MuonPasses);

TEST_P(MuonPasses, MomentumAndStep) {
  for (const bool nesterov : {true, false}) {
    for (int64_t n : {1, 17, 33000}) {
      const MuonParams params{.momentum = 0.9f, .nesterov = nesterov, .gradient_scale = 0.5f};
      auto m = RandomVector<float>(n, 1);
      auto p = RandomVector<float>(n, 2);
      const auto g = RandomVector<float>(n, 3);
      std::vector<float> u(n);
      std::vector<bf16> copy(n);
      std::vector<double> want_m(n), want_u(n), want_p(n);
      for (int64_t i = 0; i < n; ++i) {
        const double grad = 0.5 * g[i];
        want_m[i] = 0.9 * m[i] + 0.1 * grad;
        want_u[i] = nesterov ? 0.9 * want_m[i] + 0.1 * grad : want_m[i];
        want_p[i] = 0.99 * p[i] - 0.03 * want_u[i];
      }
      MuonMomentum(params, n, m.data(), g.data(), u.data());
      MuonApply<bf16>(0.99f, 0.03f, n, p.data(), u.data(), copy.data());
      ExpectClose(m, want_m, 4e-6, "m");
      ExpectClose(u, want_u, 4e-6, "u");
      ExpectClose(p, want_p, 4e-6, "p");
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(copy[i].bits, ToBf16(p[i]).bits);
    }
  }
}

}  // namespace
}  // namespace milepost::kernels
