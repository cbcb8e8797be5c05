#include "engine/ops/preference/preference_cpu_kernel.h"

#include <algorithm>
#include <cmath>

namespace milepost::kernels {
namespace {

// -log sigmoid(m).
double Softplus(double m) { return std::log1p(std::exp(-std::abs(m))) + std::max(-m, 0.0); }
double Sigmoid(double m) { return 1 / (1 + std::exp(-m)); }

// Calls body(row, whether it is of the first document) for the rows of the pair at `first`.
template <typename Body>
void ForPair(const int32_t* documents, int64_t first, int64_t rows, const Body& body) {
  for (int64_t row = first; row < rows && documents[row] - documents[first] < 2; ++row) {
    body(row, documents[row] == documents[first]);
  }
}

}  // namespace

void PreferenceLoss(const PreferenceArgs& a, float scale, float* gradients, LossSum* sum) {
  if (gradients != nullptr) std::fill_n(gradients, a.batch * a.sequence, 0.0F);
  for (int64_t sample = 0; sample < a.batch; ++sample) {
    const int64_t base = sample * a.sequence;
    for (int64_t first = 0; first < a.sequence; ++first) {
      if (a.pairs[base + first] < 0) continue;
      double difference = 0;
      ForPair(a.documents + base, first, a.sequence, [&](int64_t row, bool preferred) {
        const double more = double{a.log_probs[base + row]} - double{a.reference[base + row]};
        difference += preferred ? more : -more;
      });
      const double m = a.beta * difference, e = a.label_smoothing;
      sum->loss += (1 - e) * Softplus(m) + e * Softplus(-m);
      ++sum->targets;
      sum->correct += m > 0 ? 1 : 0;
      if (gradients == nullptr) continue;
      const double slope = a.beta * (e * Sigmoid(m) - (1 - e) * Sigmoid(-m)) * double{scale};
      ForPair(a.documents + base, first, a.sequence, [&](int64_t row, bool preferred) {
        gradients[base + row] = static_cast<float>(preferred ? slope : -slope);
      });
    }
  }
}

}  // namespace milepost::kernels
