#include "engine/ops/qk_norm/qk_norm_cpu_kernel.h"

#include <cmath>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class QkNorm : public OnEveryTarget {};
MP_ON_EVERY_TARGET(QkNorm);

constexpr float kQkNormEpsilon = 1e-3f;

// The definition, in fp64.
std::vector<double> Normalise(const QkNormShape& s, const std::vector<double>& qkv,
                              const std::vector<double>& gamma_q,
                              const std::vector<double>& gamma_k) {
  std::vector<double> out = qkv;
  const int64_t all = s.heads + 2 * s.kv_heads;
  for (int64_t head = 0; head < s.rows * all; ++head) {
    if (head % all >= s.heads + s.kv_heads) continue;  // of values
    const std::vector<double>& gamma = head % all < s.heads ? gamma_q : gamma_k;
    double squares = 0;
    for (int64_t i = 0; i < s.head_dim; ++i) {
      squares += qkv[head * s.head_dim + i] * qkv[head * s.head_dim + i];
    }
    const double rms = std::sqrt(squares / static_cast<double>(s.head_dim) + kQkNormEpsilon);
    for (int64_t i = 0; i < s.head_dim; ++i)
      out[head * s.head_dim + i] *= (s.gamma_offset + gamma[i]) / rms;
  }
  return out;
}

template <typename T>
struct Data {
  explicit Data(const QkNormShape& s)
      : elements(s.rows * (s.heads + 2 * s.kv_heads) * s.head_dim),
        qkv(RandomVector<T>(elements, 1)),
        gamma_q(RandomVector<T>(s.head_dim, 2)),
        gamma_k(RandomVector<T>(s.head_dim, 3)),
        dout(RandomVector<T>(elements, 4)),
        dqkv(elements),
        dgamma_q(s.head_dim, 7.0f),
        dgamma_k(s.head_dim, 7.0f) {}

  QkNormBackwardArgs<T> Args() {
    return {.qkv = qkv.data(),
            .gamma_q = gamma_q.data(),
            .gamma_k = gamma_k.data(),
            .dout = dout.data(),
            .dqkv = dqkv.data(),
            .dgamma_q = dgamma_q.data(),
            .dgamma_k = dgamma_k.data()};
  }

  int64_t elements;
  std::vector<T> qkv, gamma_q, gamma_k, dout, dqkv;
  std::vector<float> dgamma_q, dgamma_k;
};

template <typename T>
void CheckQkNorm(const QkNormShape& s) {
  SCOPED_TRACE(testing::Message() << s.rows << " rows, " << s.heads << "+" << s.kv_heads
                                  << " heads of " << s.head_dim << ", bytes " << sizeof(T));
  Data<T> data(s);
  const auto x = ToDouble(data.qkv), q = ToDouble(data.gamma_q), k = ToDouble(data.gamma_k);
  const auto dout = ToDouble(data.dout);
  std::vector<T> out(data.elements);
  QkNormForward(s, data.qkv.data(), data.gamma_q.data(), data.gamma_k.data(), out.data());
  ExpectClose(out, Normalise(s, x, q, k), kTolerance<T>, "out");
  std::vector<T> in_place = data.qkv;
  QkNormForward(s, in_place.data(), data.gamma_q.data(), data.gamma_k.data(), in_place.data());
  EXPECT_TRUE(SameBits(in_place, out));

  AlignedBuffer workspace(QkNormBackwardWorkspaceBytes(s.rows, s.head_dim));
  QkNormBackwardArgs<T> args = data.Args();
  QkNormBackward(s, args, workspace.data());
  ExpectGradient(
      data.dqkv, x, [&](const auto& v) { return Dot(Normalise(s, v, q, k), dout); }, kTolerance<T>,
      "dqkv");
  ExpectGradient(
      data.dgamma_q, q, [&](const auto& v) { return Dot(Normalise(s, x, v, k), dout); }, 1e-4,
      "dgamma_q");
  ExpectGradient(
      data.dgamma_k, k, [&](const auto& v) { return Dot(Normalise(s, x, q, v), dout); }, 1e-4,
      "dgamma_k");

  // Again in place of dout, one gradient added to.
  const std::vector<T> dqkv = data.dqkv;
  const std::vector<float> once_q = data.dgamma_q, once_k = data.dgamma_k;
  std::vector<T> gradient = data.dout;
  args.dout = args.dqkv = gradient.data();
  args.accumulate_k = true;
  QkNormBackward(s, args, workspace.data());
  EXPECT_TRUE(SameBits(gradient, dqkv));
  EXPECT_TRUE(SameBits(data.dgamma_q, once_q));
  for (int64_t i = 0; i < s.head_dim; ++i) ASSERT_FLOAT_EQ(data.dgamma_k[i], 2 * once_k[i]);
}

TEST_P(QkNorm, MatchesDefinition) {
  for (int64_t rows : {1, 3, 21}) {
    for (int64_t head_dim : {8, 24, 40}) {
      for (int64_t kv_heads : {1, 2}) {
        const QkNormShape shape = {rows, 2, kv_heads, head_dim, kQkNormEpsilon};
        CheckQkNorm<float>(shape);
        CheckQkNorm<bf16>(shape);
        CheckQkNorm<f16>(shape);
      }
    }
  }
}

TEST_P(QkNorm, SameBitsOnAnyThreadCount) {
  const QkNormShape shape = {300, 6, 2, 64, kQkNormEpsilon};
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    Data<float> data(shape);
    AlignedBuffer workspace(QkNormBackwardWorkspaceBytes(shape.rows, shape.head_dim));
    QkNormBackward(shape, data.Args(), workspace.data());
    std::vector<float> all = data.dqkv;
    all.insert(all.end(), data.dgamma_q.begin(), data.dgamma_q.end());
    all.insert(all.end(), data.dgamma_k.begin(), data.dgamma_k.end());
    results.push_back(all);
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
  EXPECT_TRUE(SameBits(results[0], results[2]));
}

}  // namespace
}  // namespace milepost::kernels
