#include "engine/ops/reference/gradient_check.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/philox.h"
#include "engine/ops/backward.h"

namespace milepost::graph {
namespace {

constexpr double kGradientScale = 0.25;

double Uniform(uint64_t counter, uint32_t key) {
  const auto words = Philox4x32(
      {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}, {key, 0});
  return words[0] / 4294967296.0;
}

class GradientChecker {
 public:
  GradientChecker(const Graph& forward, const GradientCheckOptions& options)
      : forward_(forward), options_(options), parameters_(forward.parameters.size()) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const Value& value = forward.values[forward.parameters[p].value];
      parameters_[p].resize(Elements(value.shape));
      const double center = forward.parameters[p].initializer == Initializer::kOnes ? 1 : 0;
      for (size_t i = 0; i < parameters_[p].size(); ++i) {
        parameters_[p][i] = center + 0.3 * TestNumber(p << 32 | i);
      }
    }
  }

  std::vector<std::string> Run() {
    Graph graph = forward_;
    if (const absl::Status status = ops::AddBackward(graph); !status.ok()) {
      return {std::string(status.message())};
    }
    ReferenceInterpreter backward(graph);
    RunMicroSteps(graph, backward);
    std::vector<std::string> errors;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const Parameter& parameter = graph.parameters[p];
      if (options_.skips_base && parameter.base) continue;
      if (parameter.gradient == kNoValue) {
        errors.push_back(graph.values[parameter.value].name + " has no gradient");
        continue;
      }
      CheckParameter(p, backward.values(parameter.gradient), errors);
    }
    return errors;
  }

 private:
  // The sum of the loss over all micro-steps, after which `run` also holds the gradients.
  double RunMicroSteps(const Graph& graph, ReferenceInterpreter& run) const {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      run.values(graph.parameters[p].value) = parameters_[p];
    }
    for (int micro_step = 0; micro_step < options_.micro_steps; ++micro_step) {
      for (ValueId input : graph.inputs) FillInput(graph, input, micro_step, run);
      run.Run({.gradient_scale = kGradientScale,
               .first_micro_step = micro_step == 0,
               .dropout = TestDropout});
    }
    double loss = 0;
    for (const LossHead& head : graph.losses) {
      loss += head.weight * run.values(head.sums)[kLossSum];
    }
    return loss;
  }

  // Targets of the input are below it; 0: it has none.
  int64_t ClassesOf(const Graph& graph, ValueId input) const {
    if (graph.values[input].name == "targets") return options_.vocabulary;
    for (const Op& op : forward_.ops) {
      if (!IsLoss(op.kind) || forward_.losses[op.attributes.head].targets != input) continue;
      const bool made = op.kind == OpKind::kClassifierLoss;  // the logits, by the model
      return graph.values[op.inputs[made ? 0 : 1]].shape[made ? 1 : 0];
    }
    return 0;
  }

  static void FillBytes(int micro_step, std::vector<double>& bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = std::floor(256 * Uniform(i + 100000 * micro_step, 4));
    }
  }

  void FillInput(const Graph& graph, ValueId input, int micro_step,
                 ReferenceInterpreter& run) const {
    const std::string& name = graph.values[input].name;
    if (options_.fill && options_.fill(name, run.integers(input))) return;
    if (graph.values[input].dtype == DType::kU8) return FillBytes(micro_step, run.values(input));
    const int64_t classes = ClassesOf(graph, input);
    const bool targets = classes > 0;
    if (!targets && name != "tokens") return;  // one document, one segment: all 0
    std::vector<int32_t>& ids = run.integers(input);
    for (size_t i = 0; i < ids.size(); ++i) {
      const uint64_t counter = i + 1000 * micro_step;
      const double drawn = Uniform(counter, targets ? 2 : 1);
      ids[i] = static_cast<int32_t>(drawn * (targets ? classes : options_.vocabulary));
      if (targets && i % 7 == 3) ids[i] = -1;
    }
  }

  void CheckParameter(size_t p, const std::vector<double>& gradient,
                      std::vector<std::string>& errors) {
    const size_t count = gradient.size();
    const size_t wanted = std::min<size_t>(count, options_.elements_per_parameter);
    ReferenceInterpreter run(forward_);
    for (size_t k = 0; k < wanted; ++k) {
      const size_t i = k * (count - 1) / std::max<size_t>(wanted - 1, 1);
      double& element = parameters_[p][i];
      const double original = element;
      element = original + options_.step;
      const double above = RunMicroSteps(forward_, run);
      element = original - options_.step;
      const double below = RunMicroSteps(forward_, run);
      element = original;
      const double expected = kGradientScale * (above - below) / (2 * options_.step);
      if (std::abs(gradient[i] - expected) <=
          options_.tolerance * std::max(1.0, std::abs(expected))) {
        continue;
      }
      errors.push_back(absl::StrFormat("%s[%d]: gradient %.9g, finite difference %.9g",
                                       forward_.values[forward_.parameters[p].value].name, i,
                                       gradient[i], expected));
    }
  }

  const Graph& forward_;
  const GradientCheckOptions options_;
  std::vector<std::vector<double>> parameters_;
};

}  // namespace

std::vector<std::string> GradientErrors(const Graph& forward, const GradientCheckOptions& options) {
  return GradientChecker(forward, options).Run();
}

double TestNumber(uint64_t index) { return 2 * Uniform(index, 3) - 1; }

double TestDropout(uint32_t tag, double p, int64_t element) {
  return Uniform(static_cast<uint64_t>(element), 1000 + tag) < p ? 0 : 1 / (1 - p);
}

}  // namespace milepost::graph
