#include <cmath>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

// As the formula says: W + s B A, and the lengths of its rows.
void DoraNorms(const Run& run) {
  const bool transposed = run.op.attributes.transposed;
  const int64_t out = run.dim(2, 0), rank = run.dim(2, 1), in = run.dim(1, 1);
  const Array change = MatMul(run.in(2), false, run.in(1), false, out, in, rank);
  Array norms(static_cast<size_t>(2 * out));
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) {
      const double w = run.in(0)[transposed ? o * in + i : i * out + o];
      const double sum = w + run.op.attributes.scale * change[o * in + i];
      norms[o] += w * w;
      norms[out + o] += sum * sum;
    }
  }
  for (double& norm : norms) norm = std::sqrt(norm);
  run.Write(0, norms);
}

// Calls visit(column, i): of a part's columns, the column of v and that of the part.
template <typename Visit>
void ForDoraPart(const Run& run, int64_t part, const Visit& visit) {
  const graph::LoraAttributes& parts = run.op.attributes.lora;
  const int64_t end = part + 1 < parts.adapters ? parts.columns[part + 1] : run.dim(0, 1);
  for (int64_t column = parts.columns[part]; column < end; ++column) {
    visit(column, static_cast<size_t>(column - parts.columns[part]));
  }
}

// What each column of v is multiplied by, where `per_part` inputs from `first` on are a part's.
// `norms`: the second norm of each, or 0.
Array DoraFactors(const Run& run, size_t first, size_t per_part, Array& norms) {
  Array factors(static_cast<size_t>(run.dim(0, 1)), 1.0);
  norms.assign(factors.size(), 0.0);
  for (int64_t part = 0; part < run.op.attributes.lora.adapters; ++part) {
    const size_t at = first + static_cast<size_t>(part) * per_part;
    if (!run.has_input(at)) continue;
    const size_t out = run.in(at).size() / 2;
    ForDoraPart(run, part, [&](int64_t column, size_t i) {
      norms[column] = run.in(at)[out + i];
      if (norms[column] == 0) return;
      factors[column] = (run.in(at)[i] + run.in(at + 1)[i]) / norms[column];
    });
  }
  return factors;
}

void Dora(const Run& run) {
  Array norms;
  const Array factors = DoraFactors(run, 1, 3, norms);
  Array y = run.in(0), biases(factors.size());
  for (int64_t part = 0; part < run.op.attributes.lora.adapters; ++part) {
    const size_t at = 3 + static_cast<size_t>(part) * 3;
    if (!run.has_input(at)) continue;
    ForDoraPart(run, part, [&](int64_t column, size_t i) { biases[column] = run.in(at)[i]; });
  }
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t column = i % factors.size();
    y[i] = y[i] * factors[column] + biases[column];
  }
  run.Write(0, y);
}

void DoraBackward(const Run& run) {
  Array norms;
  const Array factors = DoraFactors(run, 2, 2, norms);
  const auto width = static_cast<int64_t>(factors.size());
  Array dv = run.in(0), products = run.in(0);
  for (size_t i = 0; i < dv.size(); ++i) {
    dv[i] *= factors[i % factors.size()];
    products[i] *= run.in(1)[i];
  }
  const Array with_v = ColumnSums(products, width), alone = ColumnSums(run.in(0), width);
  run.Write(0, dv);
  for (int64_t part = 0; part < run.op.attributes.lora.adapters; ++part) {
    Array change, bias;
    ForDoraPart(run, part, [&](int64_t column, size_t) {
      change.push_back(norms[column] == 0 ? 0 : with_v[column] / norms[column]);
      bias.push_back(alone[column]);
    });
    run.Write(static_cast<size_t>(1 + 2 * part), change);
    run.Write(static_cast<size_t>(2 + 2 * part), bias);
  }
}

}  // namespace

constinit const Rule kDoraNorms = DoraNorms;
constinit const Rule kDora = Dora;
constinit const Rule kDoraBackward = DoraBackward;

}  // namespace milepost::ops::reference
