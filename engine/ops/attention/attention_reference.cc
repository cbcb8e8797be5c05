#include <algorithm>
#include <cmath>

#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

using graph::Attributes;
using graph::OpKind;

// One (sequence, head) of packed qkv[B,T,(H+2G)D]: element d of q, k or v at position t.
struct Head {
  int64_t batch;
  int64_t head;
  int64_t sequence;
  int64_t heads;
  int64_t kv_heads;
  int64_t size;  // elements of one head
  bool causal;
  int64_t window;
  const int32_t* documents;  // of the sequence, or null

  int64_t Packed(int64_t part, int64_t t, int64_t d) const {
    const int64_t shared = head * kv_heads / heads;
    const int64_t at = part == 0 ? head : heads + (part - 1) * kv_heads + shared;
    return ((batch * sequence + t) * (heads + 2 * kv_heads) + at) * size + d;
  }
  int64_t Out(int64_t t, int64_t d) const {
    return (batch * sequence + t) * heads * size + head * size + d;
  }
  bool Sees(int64_t query, int64_t key) const {
    return (!causal || key <= query) && (window == 0 || query - key < window) &&
           (documents == nullptr || documents[query] == documents[key]);
  }
  int64_t Lse(int64_t t) const { return (batch * heads + head) * sequence + t; }
  double Score(const Array& qkv, int64_t query, int64_t key) const {
    double score = 0;
    for (int64_t d = 0; d < size; ++d) {
      score += qkv[Packed(0, query, d)] * qkv[Packed(1, key, d)];
    }
    return score / std::sqrt(static_cast<double>(size));
  }
};

template <typename Fn>
void ForEachHead(const Run& run, const Fn& fn) {
  const Attributes& a = run.op.attributes;
  const int64_t size = run.dim(0, 1) / (a.heads + 2 * a.kv_heads);
  const size_t documents = run.op.kind == OpKind::kAttention ? 1 : 4;
  const int32_t* ids = run.has_input(documents) ? run.integers(documents).data() : nullptr;
  const int64_t step = ids == nullptr ? 0 : a.sequence;
  for (int64_t b = 0; b < a.batch; ++b) {
    for (int64_t h = 0; h < a.heads; ++h) {
      fn(Head{b, h, a.sequence, a.heads, a.kv_heads, size, a.causal, a.window, ids + b * step});
    }
  }
}

void AttentionHead(const Head& head, const Array& qkv, Array& out, Array& lse) {
  for (int64_t t = 0; t < head.sequence; ++t) {
    Array scores(head.sequence, -HUGE_VAL);
    for (int64_t s = 0; s < head.sequence; ++s) {
      if (head.Sees(t, s)) scores[s] = head.Score(qkv, t, s);
    }
    const double highest = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double score : scores) total += std::exp(score - highest);
    lse[head.Lse(t)] = highest + std::log(total);
    for (int64_t s = 0; s < head.sequence; ++s) {
      const double p = std::exp(scores[s] - lse[head.Lse(t)]);
      for (int64_t d = 0; d < head.size; ++d) out[head.Out(t, d)] += p * qkv[head.Packed(2, s, d)];
    }
  }
}

void Attention(const Run& run) {
  Array out(run.values[run.op.outputs[0].value].size(), 0.0);
  Array lse(run.values[run.op.outputs[1].value].size(), 0.0);
  ForEachHead(run, [&](const Head& head) { AttentionHead(head, run.in(0), out, lse); });
  run.Write(0, out);
  run.Write(1, lse);
}

void AttentionBackwardHead(const Run& run, const Head& head, Array& dqkv) {
  const Array& qkv = run.in(0);
  const Array& dout = run.in(3);
  const double scale = 1 / std::sqrt(static_cast<double>(head.size));
  for (int64_t t = 0; t < head.sequence; ++t) {
    double row = 0;  // sum of dout * out: what softmax's backward subtracts
    for (int64_t d = 0; d < head.size; ++d) row += dout[head.Out(t, d)] * run.in(1)[head.Out(t, d)];
    for (int64_t s = 0; s < head.sequence; ++s) {
      if (!head.Sees(t, s)) continue;
      const double p = std::exp(head.Score(qkv, t, s) - run.in(2)[head.Lse(t)]);
      double dp = 0;
      for (int64_t d = 0; d < head.size; ++d) {
        dp += dout[head.Out(t, d)] * qkv[head.Packed(2, s, d)];
        dqkv[head.Packed(2, s, d)] += p * dout[head.Out(t, d)];
      }
      const double dscore = p * (dp - row) * scale;
      for (int64_t d = 0; d < head.size; ++d) {
        dqkv[head.Packed(0, t, d)] += dscore * qkv[head.Packed(1, s, d)];
        dqkv[head.Packed(1, s, d)] += dscore * qkv[head.Packed(0, t, d)];
      }
    }
  }
}

void AttentionBackward(const Run& run) {
  Array dqkv(run.in(0).size(), 0.0);
  ForEachHead(run, [&](const Head& head) { AttentionBackwardHead(run, head, dqkv); });
  run.Write(0, dqkv);
}

// One head of queries, and the head of keys and values of its text that it reads.
struct CachedHead {
  const Run& run;
  Array& cache;  // [S, 2, G, P, D]
  int64_t text;
  int64_t head;
  int64_t kv_head;
  int64_t positions;
  int64_t size;

  const double* Query(int64_t row) const {
    return run.in(0).data() + row * run.dim(0, 1) + head * size;
  }
  double* Cached(int64_t part, int64_t position) const {
    const int64_t kv_heads = run.op.attributes.kv_heads;
    const int64_t heads = (2 * text + part) * kv_heads + kv_head;
    return cache.data() + (heads * positions + position) * size;
  }

  void Attend(int64_t row, int64_t position, double* out) const {
    Array weights;
    const int64_t window = run.op.attributes.window;
    const int64_t begin = window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
    for (int64_t t = begin; t <= position; ++t) {
      double score = 0;
      for (int64_t d = 0; d < size; ++d) score += Query(row)[d] * Cached(0, t)[d];
      weights.push_back(score / std::sqrt(static_cast<double>(size)));
    }
    const double highest = *std::max_element(weights.begin(), weights.end());
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(weight - highest);
    for (int64_t t = begin; t <= position; ++t) {
      for (int64_t d = 0; d < size; ++d) out[d] += weights[t - begin] / total * Cached(1, t)[d];
    }
  }
};

void CachedAttention(const Run& run) {
  const Attributes& a = run.op.attributes;
  const int64_t positions = run.dim(2, 3);
  const int64_t size = run.dim(2, 4);
  const bool all = a.rows_apart || run.context.position < 0;
  const int64_t last = all ? a.sequence - 1 : run.context.position;
  Array& cache = run.values[run.op.inputs[2]];
  Array out(a.sequence * a.heads * size, 0.0);
  for (int64_t row = 0; row <= last; ++row) {
    const int64_t of = a.rows_apart ? row : 0;
    const int64_t text = run.has_input(3) ? run.integers(3)[of] : 0;
    if (text < 0) continue;
    const int64_t position = run.integers(1)[of] + row - of;
    MP_CHECK(position >= 0 && position < positions) << "position " << position;
    for (int64_t head = 0; head < a.heads; ++head) {
      const CachedHead cached{run, cache, text, head, head * a.kv_heads / a.heads, positions, size};
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

}  // namespace

constinit const Rule kAttention = Attention;
constinit const Rule kAttentionBackward = AttentionBackward;
constinit const Rule kCachedAttention = CachedAttention;

}  // namespace milepost::ops::reference
