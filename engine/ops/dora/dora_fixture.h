// Weights, and a layer's output in parts, for tests of the kernels on both devices.
#ifndef MILEPOST_ENGINE_OPS_DORA_DORA_FIXTURE_H_
#define MILEPOST_ENGINE_OPS_DORA_DORA_FIXTURE_H_

#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "engine/dtype/half.h"
#include "engine/ops/dora/dora_contract.h"

namespace milepost::kernels {

template <typename T>
std::vector<T> DoraValues(int64_t n, uint32_t seed, float scale, float offset = 0) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(static_cast<size_t>(n));
  for (T& value : values) value = FromFloat<T>(offset + scale * normal(generator));
  return values;
}

// A weight with its adapter, and the products that the kernels are given.
template <typename T>
struct DoraWeights {
  static constexpr float kScale = 1.5F;

  DoraWeights(int64_t out_features, int64_t in_features, int64_t adapter_rank, bool rows)
      : out(out_features),
        in(in_features),
        rank(adapter_rank),
        transposed(rows),
        weight(DoraValues<T>(out * in, 1, 0.3F)),
        down(DoraValues<T>(rank * in, 2, 0.2F)),
        up(DoraValues<T>(out * rank, 3, 0.2F)) {
    Multiply();
  }

  void SetUp(std::vector<T> values) { up = std::move(values); }
  // W = -(1 - left) scale B A.
  void SetWeight(double left) {
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        At(o, i) = FromFloat<T>(static_cast<float>((left - 1) * Change(o, i)));
      }
    }
    Multiply();
  }

  DoraNormsArgs<T> Args(float* norms) const {
    return {.out = out,
            .in = in,
            .rank = rank,
            .transposed = transposed,
            .weight = weight.data(),
            .up = up.data(),
            .products = products.data(),
            .gram = gram.data(),
            .scale = kScale,
            .norms = norms};
  }

  // In fp64, of W + scale B A itself.
  std::vector<double> Norms() const {
    std::vector<double> norms(static_cast<size_t>(2 * out));
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        const double w = ToFloat(const_cast<DoraWeights*>(this)->At(o, i));
        norms[o] += w * w;
        norms[out + o] += std::pow(w + Change(o, i), 2);
      }
    }
    for (double& norm : norms) norm = std::sqrt(norm);
    return norms;
  }

  const int64_t out, in, rank;
  const bool transposed;
  std::vector<T> weight, down, up;
  std::vector<float> products, gram;

 private:
  T& At(int64_t o, int64_t i) { return weight[transposed ? o * in + i : i * out + o]; }
  double Change(int64_t o, int64_t i) const {
    double sum = 0;
    for (int64_t k = 0; k < rank; ++k) {
      sum += double{ToFloat(up[o * rank + k])} * double{ToFloat(down[k * in + i])};
    }
    return kScale * sum;
  }
  void Multiply() {
    products.assign(static_cast<size_t>(out * rank), 0);
    gram.assign(static_cast<size_t>(rank * rank), 0);
    for (int64_t k = 0; k < rank; ++k) {
      const T* row = down.data() + k * in;
      for (int64_t o = 0; o < out; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < in; ++i) sum += double{ToFloat(At(o, i))} * ToFloat(row[i]);
        products[o * rank + k] = static_cast<float>(sum);
      }
      for (int64_t other = 0; other < rank; ++other) {
        double sum = 0;
        for (int64_t i = 0; i < in; ++i)
          sum += double{ToFloat(row[i])} * ToFloat(down[other * in + i]);
        gram[k * rank + other] = static_cast<float>(sum);
      }
    }
  }
};

// Three parts: the first has magnitudes, the second a bias, the third both. `change` and `bias`
// have a place for every column.
template <typename T>
struct DoraLayer {
  static constexpr int64_t kFirst = 5, kThird = 12;  // columns

  explicit DoraLayer(int64_t row_count, int64_t columns = 35)
      : rows(row_count),
        width(columns),
        v(DoraValues<T>(rows * columns, 4, 1)),
        dy(DoraValues<T>(rows * columns, 5, 1)),
        change(DoraValues<T>(columns, 6, 0.3F)),
        bias(DoraValues<T>(columns, 7, 1)),
        norms{DoraValues<float>(2 * kFirst, 8, 0.2F, 2),
              DoraValues<float>(2 * (columns - kThird), 9, 0.2F, 2)} {}

  bool HasBias(size_t column) const { return column >= kFirst; }
  double Factor(size_t column, double changed) const {
    if (column >= kFirst && column < kThird) return 1;
    const std::vector<float>& both = norms[column < kFirst ? 0 : 1];
    const size_t i = column < kFirst ? column : column - kThird;
    return (both[i] + changed) / both[both.size() / 2 + i];
  }

  DoraForwardArgs<T> Forward(const T* from, T* y) const {
    DoraForwardArgs<T> args;
    FillParts(args);
    args.v = from;
    args.y = y;
    return args;
  }
  // Gradients, like `change` and `bias`, have a place for every column.
  DoraBackwardArgs<T> Backward(const T* gradient, T* dv, float* d_change, float* d_bias,
                               bool adds) const {
    DoraBackwardArgs<T> args;
    FillParts(args);
    args.dy = gradient;
    args.v = v.data();
    args.dv = dv;
    args.gradients[0] = {.change = d_change, .adds_change = adds};
    args.gradients[1] = {.bias = d_bias + kFirst, .adds_bias = adds};
    args.gradients[2] = {.change = d_change + kThird,
                         .bias = d_bias + kThird,
                         .adds_change = adds,
                         .adds_bias = adds};
    return args;
  }

  const int64_t rows, width;
  std::vector<T> v, dy, change, bias;
  std::vector<float> norms[2];

 private:
  void FillParts(DoraArgs<T>& args) const {
    args.rows = rows;
    args.width = width;
    args.parts = 3;
    args.part[0] = {.column = 0, .end = kFirst, .norms = norms[0].data(), .change = change.data()};
    args.part[1] = {.column = kFirst, .end = kThird, .bias = bias.data() + kFirst};
    args.part[2] = {.column = kThird,
                    .end = width,
                    .norms = norms[1].data(),
                    .change = change.data() + kThird,
                    .bias = bias.data() + kThird};
  }
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_DORA_DORA_FIXTURE_H_
