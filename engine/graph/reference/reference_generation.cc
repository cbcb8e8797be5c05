// Attention that goes on from cached keys and values.
#include <algorithm>
#include <cmath>

#include "engine/graph/reference/reference_run.h"

namespace milepost::graph::reference {
namespace {

// One head of queries, and the head of keys and values that it reads.
struct CachedHead {
  const Run& run;
  Array& cache;  // [2, G, P, D]
  int64_t head;
  int64_t kv_head;
  int64_t positions;
  int64_t size;

  const double* Query(int64_t row) const {
    return run.in(0).data() + row * run.dim(0, 1) + head * size;
  }
  double* Cached(int64_t part, int64_t position) const {
    const int64_t kv_heads = run.op.attributes.kv_heads;
    return cache.data() + ((part * kv_heads + kv_head) * positions + position) * size;
  }

  void Attend(int64_t row, int64_t position, double* out) const {
    Array weights;
    for (int64_t t = 0; t <= position; ++t) {
      double score = 0;
      for (int64_t d = 0; d < size; ++d) score += Query(row)[d] * Cached(0, t)[d];
      weights.push_back(score / std::sqrt(static_cast<double>(size)));
    }
    const double highest = *std::max_element(weights.begin(), weights.end());
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(weight - highest);
    for (int64_t t = 0; t <= position; ++t) {
      for (int64_t d = 0; d < size; ++d) out[d] += weights[t] / total * Cached(1, t)[d];
    }
  }
};

}  // namespace

void CachedAttention(const Run& run) {
  const Attributes& a = run.op.attributes;
  const int64_t positions = run.dim(2, 2);
  const int64_t size = run.dim(2, 3);
  const int64_t last = run.context.position < 0 ? a.sequence - 1 : run.context.position;
  Array& cache = run.values[run.op.inputs[2]];
  Array out(a.sequence * a.heads * size, 0.0);
  for (int64_t row = 0; row <= last; ++row) {
    const int64_t position = run.integers(1)[0] + row;
    MP_CHECK(position >= 0 && position < positions) << "position " << position;
    for (int64_t head = 0; head < a.heads; ++head) {
      const CachedHead cached{run, cache, head, head * a.kv_heads / a.heads, positions, size};
      for (int64_t part : {0, 1}) {
        const int64_t at = (a.heads + part * a.kv_heads + cached.kv_head) * size;
        std::copy_n(run.in(0).data() + row * run.dim(0, 1) + at, size,
                    cached.Cached(part, position));
      }
      cached.Attend(row, position, out.data() + (row * a.heads + head) * size);
    }
  }
  run.Write(0, out);
}

}  // namespace milepost::graph::reference
